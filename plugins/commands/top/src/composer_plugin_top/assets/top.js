"use strict";
// Asks the server for figures every second and draws them. Text is only ever set as text, never parsed as markup.
const SVG = "http://www.w3.org/2000/svg", EVERY_MS = 1000, STATES = ["valid", "running", "pending", "void"];
const app = document.getElementById("app"), root = document.documentElement;

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
const sum = (object) => Object.values(object || {}).reduce((total, value) => total + value, 0);
function number(value) {
  if (typeof value !== "number") return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en-US");
  return Math.abs(value) >= 0.001 ? String(+value.toPrecision(3)) : value.toExponential(1);
}
function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds)), two = (value) => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}
const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

// --- pieces ----------------------------------------------------------------------------------------------------------

function tile(label, value, about, mood) {
  return make("div", { class: "card tile" }, make("div", { class: "label" }, label), make("div", { class: "value " + (mood || "") }, value), make("div", { class: "about" }, about || "\u00a0"));
}
function table(head, rows) {
  const cells = (row) => row.map((cell) => (cell instanceof Node && cell.tagName === "TD" ? cell : make("td", {}, cell)));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, head.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, rows.map((row) => make("tr", {}, cells(row))))));
}
const card = (title, ...children) => make("section", { class: "card", "aria-label": title }, make("h2", {}, title), children);
const bar = (share) => make("td", { class: "bar" }, make("div", { class: "track", "aria-hidden": "true" }, make("i", { style: { width: `${100 * share}%` } })));
function bars(head, rows) {
  const most = Math.max(1, ...rows.map((row) => row[1]));
  return table(head, rows.map(([name, value]) => [name, bar(value / most), count(value)]));
}

// --- charts: drawn when they are in the page, at the width that they have there ----------------------------------------

const H = 150, LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 20;
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return ([1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].find((by) => by * power >= value) || 10) * power;
}
function frame(width, high, from, to, tick, about) {
  const x = (at) => LEFT + ((width - LEFT - RIGHT) * (at - from)) / (to - from || 1), y = (value) => TOP + (H - TOP - BOTTOM) * (1 - value / high);
  const picture = svg("svg", { width, height: H, viewBox: `0 0 ${width} ${H}`, role: "img", "aria-label": about });
  for (let part = 0; part <= 2; part++) {
    const value = (high * part) / 2;
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }), svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  }
  const parts = width > 500 ? 4 : 2;
  for (let part = 0; part <= parts; part++) {
    const at = from + ((to - from) * part) / parts;
    picture.append(svg("text", { x: x(at), y: H - 4, "text-anchor": part === 0 ? "start" : part === parts ? "end" : "middle" }, tick(at)));
  }
  return { picture, x, y };
}
function chart(title, about, draw, wide) {
  const place = make("div", { class: "chart" });
  place.draw = () => place.replaceChildren(draw(Math.max(220, place.clientWidth)));
  return make("section", { class: "card " + (wide || ""), "aria-label": title }, make("h2", {}, title), place, about ? make("div", { class: "legend" }, about) : null);
}
// Points [[at, value], ...]; null values are gaps.
function curve(title, points, unit, to, width) {
  const known = points.filter(([, value]) => value !== null), most = Math.max(0, ...known.map(([, value]) => value));
  const high = known.every(([, value]) => Number.isInteger(value)) ? Math.max(2, 2 * Math.ceil(nice(most) / 2)) : nice(most || 1);
  const last = known.length ? known[known.length - 1][1] : 0;
  const { picture, x, y } = frame(width, high, 0, to, clock, `${title} over ${clock(to)} of the run; at the end ${number(last)} ${unit}, at most ${number(most)}`);
  const runs = [[]];
  for (const [at, value] of points) {
    if (value !== null) runs[runs.length - 1].push([x(at).toFixed(1), y(value).toFixed(1)]);
    else if (runs[runs.length - 1].length) runs.push([]);
  }
  for (const run of runs.filter((found) => found.length)) {
    const line = run.map(([at, value], index) => `${index ? "L" : "M"}${at} ${value}`).join("");
    if (run.length === 1) picture.append(svg("circle", { class: "dot", cx: run[0][0], cy: run[0][1], r: 2.5 }));
    else picture.append(svg("path", { class: "area", d: `${line}L${run[run.length - 1][0]} ${y(0)}L${run[0][0]} ${y(0)}Z` }), svg("path", { class: "curve", d: line }));
  }
  return picture;
}
// Slots by state as areas on top of each other, as often as somebody has looked; times in which nobody did are gaps.
function stacked(seen, now, width) {
  const from = seen.at_s.length ? seen.at_s[0] : now, span = Math.max(60, 60 * Math.ceil((now - from) / 60));
  const at = seen.at_s, totals = at.map((_, index) => STATES.reduce((total, name) => total + seen[name][index], 0));
  const last = STATES.map((name) => `${count(seen[name][at.length - 1])} ${name}`).join(", ");
  const { picture, x, y } = frame(width, nice(Math.max(4, ...totals)), now - span, now, (when) => (now - when < 1 ? "now" : `${clock(now - when)} ago`), `Slots by state over ${clock(span)}; now ${last}`);
  const runs = [];
  at.forEach((when, index) => {
    if (!index || when - at[index - 1] > 5) runs.push([]);
    runs[runs.length - 1].push(index);
  });
  const base = at.map(() => 0);
  for (const name of STATES)
    for (const run of runs) {
      const below = run.map((index) => base[index]);
      run.forEach((index) => { base[index] += seen[name][index]; });
      if (run.every((index, place) => base[index] === below[place])) continue;
      const wide = run.length > 1 ? 0 : 1.5;
      const there = run.flatMap((index) => [[x(at[index]) - wide, y(base[index])], ...(wide ? [[x(at[index]) + wide, y(base[index])]] : [])]);
      const back = run.flatMap((index, place) => [[x(at[index]) - wide, y(below[place])], ...(wide ? [[x(at[index]) + wide, y(below[place])]] : [])]).reverse();
      picture.append(svg("path", { class: name, d: [...there, ...back].map(([px, py], place) => `${place ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("") + "Z" }));
    }
  return picture;
}

// --- the run ---------------------------------------------------------------------------------------------------------

const rate = (value) => (value >= 10 ? count(Math.round(value)) : number(+value.toFixed(2)));
function way(run) {
  const { stage } = run;
  if (!stage) return null;
  const share = stage.steps ? stage.step / stage.steps : 0, left = stage.left_s === null ? "" : `, about ${clock(stage.left_s)} left`;
  const steps = stage.steps ? `step ${count(stage.step)} of ${count(stage.steps)}` : plural(stage.step, "step");
  const track = make("div", { class: "track", role: "progressbar", "aria-label": `Stage ${stage.name}`, "aria-valuemin": 0, "aria-valuemax": stage.steps || 0, "aria-valuenow": stage.step }, make("i", { style: { width: `${100 * Math.min(1, share)}%` } }));
  return make("div", { class: "way" }, make("div", { class: "row" }, make("b", {}, `Stage ${stage.name}${stage.kind ? ` (${stage.kind})` : ""}: ${stage.ended ? "ended" : steps}`), make("span", { class: "soft" }, `${clock(run.run_s)} of work${left}`)), track);
}
function tiles(run) {
  const told = run.status || { tables: {}, counts: {} }, { tables, counts } = told, slots = tables.slots, groups = tables.groups || {};
  const outcomes = Object.entries(run.outcomes), voids = sum(Object.fromEntries(outcomes.filter(([name]) => name.startsWith("void")))), all = sum(run.outcomes);
  const { train_s, step_s, staleness_max, solve_rate, reward_mean } = run.metrics, late = Object.keys(tables.staleness || {}).map(Number);
  const shown = [];
  if (slots) shown.push(tile("Slots running", count(slots.running), `${count(slots.pending)} pending, ${count(slots.valid)} valid`), tile("Groups that wait", count(groups.ended), `for the trainer; ${count(groups.open)} open, ${count(groups.training)} in training`));
  shown.push(tile("Version", run.version === null ? "–" : count(run.version), "the trainer's"));
  if (staleness_max !== undefined) shown.push(tile("Staleness", number(staleness_max), `at the last step; at most ${number(Math.max(staleness_max, 0, ...late))} so far`));
  shown.push(tile("Episodes/s", rate(run.rates.episodes), "in the last minute"), tile("Tokens/s", rate(run.rates.tokens), "sampled, in the last minute"));
  if (train_s !== undefined && step_s) shown.push(tile("Trainer busy", `${Math.round(Math.min(100, (100 * train_s) / step_s))} %`, `of the last step's ${number(step_s)} s`));
  shown.push(tile("Void", count(voids), all ? `of ${plural(all, "episode")}` : "no episode has ended", voids ? "warn" : ""));
  if (slots) shown.push(tile("Lost", count(counts.lost), "episodes asked for again", counts.lost ? "warn" : ""));
  if (solve_rate !== undefined) shown.push(tile("Solved", `${(100 * solve_rate).toFixed(0)} %`, `of the last step's; reward ${number(reward_mean)}`));
  return make("div", { class: "tiles" }, shown);
}
function charts(run) {
  const { series, seen } = run, { width_s } = series, ends = series.episodes.map((_, index) => Math.min((index + 1) * width_s, series.now_s));
  const each = (values) => values.map((value, index) => [ends[index], value === null ? null : value / Math.max(1e-9, ends[index] - index * width_s)]);
  const plain = (values) => values.map((value, index) => [ends[index], value]);
  // the last bucket has only begun: a rate of it would jump
  const whole = (points) => (points.length > 1 ? points.slice(0, -1) : points);
  const about = (text) => `${text}; each point is of ${clock(width_s)}`;
  const shown = [];
  if (seen.at_s.length) {
    const last = seen.at_s.length - 1;
    const legend = STATES.map((name) => make("span", {}, make("span", { class: "key " + name }), `${name} `, make("b", {}, count(seen[name][last]))));
    shown.push(chart("Slots by state", [legend, make("span", {}, "since this page's server was started")], (width) => stacked(seen, seen.at_s[last], width), "wide"));
  }
  if (sum(series.episodes)) shown.push(
    chart("Episodes per second", about("that ended"), (width) => curve("Episodes per second", whole(each(series.episodes)), "per second", series.now_s, width)),
    chart("Sampled tokens per second", about("of episodes that ended"), (width) => curve("Sampled tokens per second", whole(each(series.tokens)), "per second", series.now_s, width)));
  if (series.running.some((value) => value)) shown.push(chart("Episodes under way", about("the most at once, of every purpose"), (width) => curve("Episodes under way", plain(series.running), "episodes", series.now_s, width)));
  if (series.staleness.some((value) => value !== null)) shown.push(chart("Staleness, largest", about("versions between a step's weights and its oldest token"), (width) => curve("Largest staleness", plain(series.staleness).filter(([, value]) => value !== null), "versions", series.now_s, width)));
  if (!sum(series.episodes) && sum(series.steps)) shown.push(chart("Steps per second", about("of every stage"), (width) => curve("Steps per second", whole(each(series.steps)), "per second", series.now_s, width)));
  return make("div", { class: "charts" }, shown);
}
const words = { late_results: "reports that came too late", refused_results: "refused: weights gone", lost: "lost with their process", trained_groups: "groups trained", admitted: "groups admitted", capacity: "groups at once, at most", valid: "valid results", void: "void results" };
function cards(run) {
  const told = run.status || { tables: {}, counts: {}, executor: {}, parts: {}, oldest: [] }, { tables, counts, parts, oldest } = told;
  const stale = Object.entries(tables.staleness || {}).map(([name, value]) => [Number(name), value]).sort(([one], [other]) => one - other);
  const versions = Object.entries(tables.versions || {}).map(([name, value]) => [Number(name), value]).sort(([one], [other]) => other - one);
  const shown = [];
  if (tables.slots) shown.push(card("Staleness of trained groups", stale.length ? bars(["versions", "", "groups"], stale.map(([name, value]) => [count(name), value])) : make("p", { class: "soft small" }, "No group has been trained yet.")));
  if (tables.slots) shown.push(card("Live groups by version", versions.length ? bars(["admitted at", "", "groups"], versions.map(([name, value]) => [count(name), value])) : make("p", { class: "soft small" }, "No group is live.")));
  const causes = Object.entries(tables.voids || {}), drops = Object.entries(tables.dropped || {}).filter(([, value]) => value);
  const lines = [...["admitted", "capacity", "trained_groups", "valid", "void", "lost", "late_results", "refused_results"].filter((name) => name in counts).map((name) => [words[name], count(counts[name])]), ...causes.map(([name, value]) => [`void: ${name}`, count(value)]), ...drops.map(([name, value]) => [name === "tokens" ? "tokens of dropped groups" : `groups dropped: ${name}`, count(value)])];
  if (lines.length) shown.push(card(`Ledger of stage ${told.stage}`, table(["what", "so far"], lines)));
  if (oldest.length) shown.push(card("Longest under way", table(["task", "group", "slot", "for"], oldest.map((row) => [row.task, number(row.group), number(row.slot), clock(row.for_s)]))));
  for (const [kind, rows] of Object.entries(parts)) {
    const names = [...new Set(Object.values(rows).flatMap((row) => Object.keys(row)))];
    shown.push(card(kind[0].toUpperCase() + kind.slice(1), table(["", ...names], Object.entries(rows).map(([id, row]) => [id, ...names.map((name) => (name === "pid" && name in row ? String(row[name]) : number(row[name])))]))));
  }
  const figures = Object.entries(told.executor);
  if (figures.length) shown.push(card("Executor", table(["figure", "now"], figures.map(([name, value]) => [name, number(value)]))));
  const outcomes = Object.entries(run.outcomes), all = sum(run.outcomes);
  if (outcomes.length) shown.push(card("Episodes of the run", table(["outcome", "count", "share"], outcomes.map(([name, value]) => [name, count(value), `${((100 * value) / all).toFixed(1)} %`]))));
  const evaluated = Object.entries(run.evaluated);
  if (evaluated.length) shown.push(card("Evaluations", table(["name", "solved"], evaluated.map(([name, value]) => [name, `${(100 * value).toFixed(1)} %`]))));
  if (run.faults.length) shown.push(card("Faults", table(["where", "times"], run.faults.slice(0, 12).map(([where, plugin, times, error]) => [[make("b", {}, [where, plugin].filter(Boolean).join(", ")), make("div", { class: "small soft fault" }, error)], count(times)]))));
  return make("div", { class: "cards" }, shown);
}
function notes(run) {
  const waits = run.status && run.state.word !== "finished" && run.status.waits_for ? [["soft", `Waits for ${run.status.waits_for}`]] : [];
  const texts = [...(run.state.note ? [[run.state.mood, run.state.note]] : []), ...waits, ...run.problems.map((text) => ["bad", text])];
  return texts.map(([mood, text]) => make("p", { class: `card note small ${mood}` }, text[0].toUpperCase() + text.slice(1)));
}

// --- the page --------------------------------------------------------------------------------------------------------

function themeButton() {
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const other = () => (dark() ? "Light" : "Dark");
  const button = make("button", { type: "button", onclick: () => { root.dataset.theme = dark() ? "light" : "dark"; button.textContent = other(); } }, other());
  return button;
}
const title = make("h1", {}, "A run"), state = make("span", { class: "chip warn", role: "status" }, "connecting"), age = make("b");
const folder = make("span"), main = make("main", {});
let drawn = "", width = 0;

function set(node, text) { if (node.textContent !== text) node.textContent = text; }
function show(run) {
  set(title, run.name);
  set(state, run.state.word);
  state.className = "chip " + run.state.mood;
  set(age, run.old);
  set(folder, `${run.folder}${run.starts > 1 ? `, started ${count(run.starts)} times` : ""}${run.read < 1 ? `, ${Math.floor(100 * run.read)} % of its diary read` : ""}`);
  document.title = `${run.name}: ${run.state.word} · Composer`;
  const { now_s, age_s, old, status, ...rest } = run, fresh = JSON.stringify([rest, status && { ...status, age_s: 0 }]);
  if (fresh === drawn && width === app.clientWidth) return; // so that what is selected or focused stays
  drawn = fresh;
  width = app.clientWidth;
  main.replaceChildren(...[notes(run), way(run), tiles(run), charts(run), cards(run)].flat().filter(Boolean));
  for (const place of main.querySelectorAll(".chart")) place.draw();
}
let run = null;
async function refresh() {
  try {
    const reply = await fetch("/figures", { cache: "no-store" });
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    run = await reply.json();
  } catch {
    state.className = "chip bad";
    set(state, "the server does not answer");
    run = null;
  }
  if (run) show(run);
  setTimeout(refresh, EVERY_MS);
}
addEventListener("resize", () => { if (run) show(run); });
app.append(make("header", {}, title, state, make("span", { class: "grow" }), themeButton()), make("p", { class: "soft small" }, age, " in ", folder), main);
refresh();
