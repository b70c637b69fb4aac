"use strict";
// Asks the server for figures every second and draws them. Text is only ever set as text, never parsed as markup.
const SVG = "http://www.w3.org/2000/svg", EVERY_MS = 1000, SPAN_S = 600, KEY = "composer-envd-token";
const app = document.getElementById("app"), root = document.documentElement;
let token = "", timer = 0, newest = {}, points = {};

function make(tag, fields = {}, ...children) {
  const { of, style, ...rest } = fields;
  const node = of === "svg" ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  Object.assign(node.style, style || {});
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const svg = (tag, fields, ...children) => make(tag, { ...fields, of: "svg" }, ...children);
const count = (value) => (value || 0).toLocaleString("en-US");
const percent = (value, digits = 0) => (typeof value === "number" ? `${value.toFixed(digits)} %` : "not told");
function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 7200 ? `${+(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
const ms = (value) => (value === undefined ? "–" : value >= 100 ? Math.round(value).toLocaleString("en-US") : value >= 10 ? value.toFixed(1) : value.toFixed(2));
function bytes(value) {
  const unit = value >= 2 ** 30 ? ["GiB", 30] : value >= 2 ** 20 ? ["MiB", 20] : ["KiB", 10];
  return `${(value / 2 ** unit[1]).toFixed(unit[0] === "GiB" ? 1 : 0)} ${unit[0]}`;
}
const sum = (object) => Object.values(object || {}).reduce((total, value) => total + value, 0);

// --- pieces ----------------------------------------------------------------------------------------------------------

function tile(label, value, note, mood) {
  return make("div", { class: "card tile" }, make("div", { class: "label" }, label), make("div", { class: "value " + (mood || "") }, value), make("div", { class: "note" }, note || "\u00a0"));
}
function table(head, rows) {
  return make("table", {}, make("thead", {}, make("tr", {}, head.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, cell))))));
}
function meter(label, value, most, shown, limit) {
  const known = typeof value === "number", share = known ? Math.min(1, value / (most || 1)) : 0;
  const bar = make("i", { style: { width: `${100 * share}%` } });
  const mark = limit === undefined ? null : make("u", { title: "limit", style: { left: `${Math.min(99, (100 * limit) / most)}%` } });
  const high = known && limit !== undefined && value >= limit;
  return make("div", { class: "meter" }, make("div", { class: "row" }, make("span", {}, label), make("b", { class: high ? "bad" : "" }, known ? shown : "not told")), make("div", { class: "track" + (high ? " high" : "") }, bar, mark));
}
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].map((by) => by * power).find((by) => by >= value) || 10;
}

// Stacked areas of up to ten minutes, `W` pixels wide; seconds without a point (the server was away) are gaps.
function statesPicture(states, series, now, W) {
  const H = W > 600 ? 230 : 170, LEFT = 44, RIGHT = 8, TOP = 10, BOTTOM = 22, TICKS = W > 600 ? 4 : 2;
  const span = Math.min(SPAN_S, Math.max(60, 60 * Math.ceil((now - (series.length ? series[0].at_s : now)) / 60)));
  const recent = series.filter((point) => point.at_s > now - span);
  const high = nice(Math.max(4, ...recent.map((point) => sum(point.states))));
  const x = (at) => LEFT + (W - LEFT - RIGHT) * (1 - (now - at) / span), y = (value) => TOP + (H - TOP - BOTTOM) * (1 - value / high);
  const last = recent.length ? recent[recent.length - 1].states : [];
  const about = states.map((name, at) => `${name} ${last[at] || 0}`).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "img", "aria-label": `Sandboxes by state over ${duration(span)}; now ${about}` });
  for (let part = 0; part <= 4; part++) {
    const value = (high * part) / 4;
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) }), svg("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, count(value)));
  }
  for (let part = 0; part <= TICKS; part++)
    picture.append(svg("text", { x: x(now - (span * part) / TICKS), y: H - 4, "text-anchor": part === TICKS ? "start" : part ? "middle" : "end" }, part ? `${duration((span * part) / TICKS)} ago` : "now"));
  const runs = [];
  recent.forEach((point, at) => {
    if (!at || point.at_s - recent[at - 1].at_s > 5) runs.push([]);
    runs[runs.length - 1].push(point);
  });
  const base = new Map();
  states.forEach((name, at) => runs.forEach((run) => {
    const below = run.map((point) => base.get(point) || 0), above = run.map((point, index) => below[index] + (point.states[at] || 0));
    run.forEach((point, index) => base.set(point, above[index]));
    if (above.every((value, index) => value === below[index])) return;
    const there = run.map((point, index) => `${index ? "L" : "M"}${x(point.at_s).toFixed(1)} ${y(above[index]).toFixed(1)}`);
    const back = run.map((point, index) => `L${x(point.at_s).toFixed(1)} ${y(below[index]).toFixed(1)}`).reverse();
    picture.append(svg("path", { class: name, d: there.join("") + back.join("") + "Z" }));
  }));
  return picture;
}
// Drawn when it is in the page, at the width that it has there.
function statesChart(states, series, now) {
  const last = series.length ? series[series.length - 1].states : [], place = make("div", { class: "chart" });
  place.draw = () => place.replaceChildren(statesPicture(states, series, now, Math.max(220, place.clientWidth)));
  const legend = make("div", { class: "legend" }, states.map((name, at) => make("span", {}, make("span", { class: "key " + name }), `${name} `, make("b", {}, count(last[at])))));
  return make("div", { class: "card wide" }, make("h3", {}, "Sandboxes by state"), place, legend);
}

// --- a node ----------------------------------------------------------------------------------------------------------

function tiles(node) {
  const { queue, room, pool, counts } = node, asked = pool.hits + pool.misses, refused = sum(queue.refused);
  const lost = (counts.vanished || 0) + (counts.leases_expired || 0) + (counts.sandboxes_expired || 0);
  return make("div", { class: "tiles" },
    tile("Live sandboxes", count(room.live), `of ${count(room.most)}; ${count(node.states.busy)} busy`),
    tile("Queue", count(queue.depth), queue.depth ? `oldest waits ${duration(queue.oldest_s)}` : "nobody waits", queue.depth ? "warn" : ""),
    tile("Starting", count(room.starting), `at most ${count(room.starts)} at once`),
    tile("Pool hits", asked ? percent((100 * pool.hits) / asked) : "–", asked ? `${count(pool.hits)} of ${count(asked)}; ${count(pool.warm)} ready` : "no client has groups"),
    tile("Refused", count(refused), "creations", refused ? "bad" : ""),
    tile("Orphans reaped", count(counts.orphans_reaped), "of an earlier server"),
    tile("Expired or lost", count(lost), `${count(counts.leases_expired)} clients silent`, lost ? "warn" : ""));
}
function latencies(node) {
  const rows = ["create", "fork", "exec", "wait"].map((act) => [act, node.latencies_ms[act]]);
  const shown = rows.map(([act, row]) => [act === "wait" ? "wait for room" : act, ...(row ? [ms(row.p50), ms(row.p95), ms(row.p99), count(row.count)] : ["–", "–", "–", "0"])]);
  return make("div", { class: "card" }, make("h3", {}, "Milliseconds, newest acts"), table(["", "p50", "p95", "p99", "done"], shown));
}
function pressure(node) {
  const now = node.pressure || {}, limits = node.limits, used = now.total_bytes - now.available_bytes;
  return make("div", { class: "card" }, make("h3", {}, "Pressure"),
    meter("Memory counted for all", node.room.memory_bytes, node.room.budget_bytes, `${bytes(node.room.memory_bytes)} of ${bytes(node.room.budget_bytes)}`),
    meter("Memory of the machine", used, now.total_bytes, `${bytes(Math.max(0, now.available_bytes))} available`, now.total_bytes - limits.free_bytes),
    meter("Stalled for memory (all tasks)", now.memory_full, 100, percent(now.memory_full, 1), limits.memory_pressure),
    meter("Waiting for a core (some task)", now.cpu_some, 100, percent(now.cpu_some, 1), limits.cpu_pressure),
    meter("Stalled for the disk (all tasks)", now.io_full, 100, percent(now.io_full, 1)),
    make("div", { class: "small soft" }, `load ${(now.load || 0).toFixed(1)} on ${count(now.cores)} cores; percentages are of the last 10 s`));
}
function happenings(node) {
  const words = { orphans_reaped: "orphans reaped", leases_expired: "clients silent", sandboxes_expired: "sandboxes not renewed", vanished: "vanished behind our back", stuck: "could not be destroyed", replayed: "requests sent again", abandoned: "requests given up" };
  const rows = Object.entries(node.queue.refused).map(([reason, times]) => [`refused: ${reason}`, count(times)]);
  for (const [name, times] of Object.entries(node.counts)) if (times) rows.push([words[name] || name, count(times)]);
  for (const [act, times] of Object.entries(node.failed)) rows.push([`${act} failed`, count(times)]);
  const clients = node.clients.map((row) => [row.client || "unnamed", count(row.sandboxes), row.group ? count(row.group) : "–"]);
  return make("div", { class: "card" }, make("h3", {}, "Refusals and events"), rows.length ? table(["what", "times"], rows) : make("p", { class: "soft small" }, "Nothing was refused and nothing went wrong."),
    make("h3", { style: { marginTop: "14px" } }, "Clients"), clients.length ? table(["client", "sandboxes", "group"], clients.slice(0, 8)) : make("p", { class: "soft small" }, "No client holds a lease."));
}
function nodeView(node, states) {
  if (node.missing) return make("section", { class: "node" }, make("div", { class: "head" }, make("h2", {}, node.node), make("span", { class: "chip bad" }, "does not answer")), make("div", { class: "card soft" }, node.missing));
  const limits = node.limits, now = node.pressure || {};
  const held = now.memory_full >= limits.memory_pressure || now.available_bytes < limits.free_bytes ? ["starts are held: memory", "bad"] : now.cpu_some >= limits.cpu_pressure ? ["one start at a time: cores", "warn"] : ["open", "good"];
  return make("section", { class: "node", id: `node-${node.node}` },
    make("div", { class: "head" }, make("h2", {}, `Node ${node.node}`), make("span", { class: "chip " + held[1] }, held[0]), make("span", { class: "soft" }, `${node.provider}, up ${duration(node.now_s - node.started_s)}`)),
    tiles(node), statesChart(states, points[node.node] || [], node.now_s),
    make("div", { class: "three" }, latencies(node), pressure(node), happenings(node)));
}

// --- the page --------------------------------------------------------------------------------------------------------

function themeButton() {
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = make("button", { type: "button", onclick: () => { root.dataset.theme = dark() ? "light" : "dark"; button.textContent = dark() ? "Light" : "Dark"; } });
  button.textContent = dark() ? "Light" : "Dark";
  return button;
}
const state = make("span", { class: "chip" }), nodes = make("main", { "aria-live": "off" });
function say(text, mood) { state.textContent = text; state.className = "chip " + mood; }

function show(data) {
  for (const node of data.nodes) {
    if (node.missing) continue;
    const kept = (points[node.node] || []).filter((point) => point.at_s > node.now_s - SPAN_S);
    const last = kept.length ? kept[kept.length - 1].at_s : 0;
    points[node.node] = [...kept, ...node.series.filter((point) => point.at_s > last)];
  }
  newest = Math.min(...data.nodes.filter((node) => !node.missing).map((node) => (points[node.node].length ? points[node.node][points[node.node].length - 1].at_s : 0)));
  nodes.replaceChildren(...data.nodes.map((node) => nodeView(node, data.states)));
  draw();
}
function draw() { for (const place of nodes.querySelectorAll(".chart")) place.draw(); }
async function refresh() {
  try {
    const reply = await fetch(`/v1/fleet?since=${Number.isFinite(newest) ? newest : 0}`, { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
    if (reply.status === 401) return login("This token is not the server's.");
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    show(await reply.json());
    say("live", "good");
  } catch (error) {
    say("the server does not answer", "bad");
  }
  timer = setTimeout(refresh, EVERY_MS);
}
function start(given) {
  token = given;
  sessionStorage.setItem(KEY, token);
  clearTimeout(timer);
  say("connecting", "warn");
  const leave = make("button", { type: "button", onclick: () => login("") }, "Forget token");
  app.replaceChildren(make("header", {}, make("h1", {}, "Sandboxes"), state, make("span", { class: "grow" }), themeButton(), leave), nodes);
  refresh();
}
function login(problem) {
  clearTimeout(timer);
  sessionStorage.removeItem(KEY);
  const input = make("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const submit = (event) => { event.preventDefault(); if (input.value.trim()) start(input.value.trim()); };
  app.replaceChildren(make("form", { class: "card login", onsubmit: submit }, make("h1", {}, "Sandboxes"), make("label", { for: "token" }, "The server's bearer token"), input,
    make("div", { class: "small soft" }, "It stands in the server's token file, is kept in this tab only, and is sent to this server only."),
    problem ? make("div", { class: "bad small", role: "alert" }, problem) : null, make("button", { type: "submit" }, "Show the fleet")));
  input.focus();
}
newest = 0;
addEventListener("resize", draw);
const fragment = location.hash.slice(1);
if (fragment) history.replaceState(null, "", location.pathname);
const known = fragment || sessionStorage.getItem(KEY);
if (known) start(known); else login("");
