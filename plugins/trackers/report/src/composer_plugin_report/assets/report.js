"use strict";
// Draws the page out of the JSON beside it. Text from the run is only ever set as text, never parsed as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, fields = {}, ...children) {
  const { of, ...rest } = fields;
  const node = of === "svg" ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const svg = (tag, fields, ...children) => make(tag, { ...fields, of: "svg" }, ...children);

function number(value, digits = 3) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en-US");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : digits);
}
const percent = (value) => (typeof value === "number" ? (100 * value).toFixed(1) + " %" : "–");
function duration(seconds) {
  const whole = Math.round(seconds), two = (part) => String(part).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}
function section(id, title, ...children) {
  return make("section", { id, "aria-labelledby": id + "-title" }, make("h2", { id: id + "-title" }, title), ...children);
}
function table(columns, rows) {
  const head = columns.map((column) => make("th", { class: column.text ? null : "number", scope: "col" }, column.name));
  const body = rows.map((row) => make("tr", {}, row.map((cell, at) => make("td", { class: columns[at].text ? null : "number" }, cell))));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, body)));
}
const chip = (text, kind) => make("span", { class: "chip " + kind }, text);

// --- charts --------------------------------------------------------------------------------------------------------

const W = 360, H = 190, LEFT = 44, RIGHT = 8, TOP = 10, BOTTOM = 24;

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((by) => by * power).find((by) => by >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toFixed(1) + "M";
  if (size >= 1e3) return +(value / 1e3).toFixed(1) + "k";
  if (size !== 0 && size < 1e-3) return value.toExponential(0);
  return String(+value.toFixed(size < 0.1 ? 3 : 2));
}
// A centered mean, so that the bold line neither lags behind the raw one nor invents a trend at its ends.
function smooth(points) {
  const half = Math.min(25, Math.floor(points.length / 24));
  return points.map(([x], at) => {
    const reach = Math.min(half, at, points.length - 1 - at), part = points.slice(at - reach, at + reach + 1);
    return [x, part.reduce((sum, [, y]) => sum + y, 0) / part.length];
  });
}
function scaleOf(chart, all) {
  let low = Math.min(...all), high = Math.max(...all);
  if (chart.kind === "area") [low, high] = [0, 1];
  else if (chart.log) {
    if (chart.limit) high = Math.max(high, chart.limit);
    [low, high] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    if (low === high) high += 1;
  } else {
    if (chart.unit.startsWith("share")) low = 0;
    else if (low > 0 && low < 0.6 * high) low = 0;
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    [low, high] = [low === 0 ? 0 : low - room, high + room];
    if (chart.unit.startsWith("share") && high > 0.9) high = Math.max(1, high - room);
  }
  const y = (value) => TOP + (H - TOP - BOTTOM) * (1 - ((chart.log ? Math.log10(value) : value) - low) / (high - low));
  const marks = chart.log
    ? Array.from({ length: high - low + 1 }, (_, at) => 10 ** (low + at))
    : ticks(low, high, 5);
  return { y, marks };
}
const path = (points, x, y) => points.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");

function chartFigure(chart) {
  const area = chart.kind === "area";
  const series = chart.series
    .map((one) => ({ ...one, points: one.points.filter(([, value]) => typeof value === "number" && (!chart.log || value > 0)) }))
    .filter((one) => one.points.length)
    .map((one) => ({ ...one, band: chart.log ? [] : one.band || [] }));
  if (!series.length) return null;
  const steps = [...new Set(series.flatMap((one) => one.points.map(([at]) => at)))].sort((a, b) => a - b);
  const first = steps[0], last = steps[steps.length - 1];
  const x = (at) => LEFT + (W - LEFT - RIGHT) * (last === first ? 0.5 : (at - first) / (last - first));
  const { y, marks } = scaleOf(chart, series.flatMap((one) => [...one.points.map(([, value]) => value), ...one.band.flatMap(([, low, high]) => [low, high])]));
  const about = series.map((one) => `${one.name} from ${number(one.points[0][1])} to ${number(one.points[one.points.length - 1][1])}`).join("; ");
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${chart.title}, steps ${first} to ${last}: ${about}` });
  for (const mark of marks) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(mark), y2: y(mark) }),
      svg("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, short(mark)));
  }
  for (const mark of ticks(first, Math.max(last, first + 1), 5).filter((at) => Number.isInteger(at) && at <= last))
    picture.append(svg("text", { x: x(mark), y: H - 6, "text-anchor": "middle" }, short(mark)));
  if (chart.limit)
    picture.append(svg("line", { class: "limit", x1: LEFT, x2: W - RIGHT, y1: y(chart.limit), y2: y(chart.limit) }),
      svg("text", { x: W - RIGHT, y: y(chart.limit) + 13, "text-anchor": "end" }, `limit ${short(chart.limit)}`));
  if (area) stack(series, steps).forEach((band, at) => picture.append(svg("path", { class: "f" + (at % 8), opacity: 0.85, d: bandPath(band, x, y) })));
  else series.forEach((one, at) => {
    if (one.band.length > 1) picture.append(svg("path", { class: `band f${at % 8}`, d: bandPath(one.band, x, y) }));
    const many = one.points.length > 12 && !chart.log;
    if (many) picture.append(svg("path", { class: `raw s${at % 8}`, d: path(one.points, x, y) }));
    picture.append(svg("path", { class: `main s${at % 8}`, d: path(many ? smooth(one.points) : one.points, x, y) }));
    if (one.points.length < 12) for (const [px, py] of one.points) picture.append(svg("circle", { class: "f" + (at % 8), cx: x(px), cy: y(py), r: 3 }));
  });
  const legend = make("div", { class: "legend" });
  const tell = (at) => legend.replaceChildren(
    ...series.map((one, index) => {
      const value = valueAt(one.points, at), span = (one.band || []).find(([step]) => step === at);
      return make("span", {}, make("span", { class: `key f${index % 8}` }), one.name + " ", make("b", {}, area ? percent(value) : number(value)), span ? ` ± ${number((span[2] - span[1]) / 2)}` : null);
    }), make("span", {}, `step ${at}`));
  hover(picture, steps, x, tell, last);
  return make("figure", { class: "card" }, make("figcaption", {}, make("h3", {}, chart.title), make("span", { class: "unit" }, [chart.unit, chart.log ? "log" : "", series.some((one) => one.band.length) ? "band: 95 %" : ""].filter(Boolean).join(", "))), picture, legend);
}
function valueAt(points, at) {
  let found = null;
  for (const [step, value] of points) { if (step > at) break; found = value; }
  return found;
}
function stack(series, steps) {
  let below = steps.map(() => 0);
  return series.map((one) => {
    const above = steps.map((at, index) => Math.min(1, below[index] + (valueAt(one.points, at) ?? 0)));
    const band = steps.map((at, index) => [at, below[index], above[index]]);
    below = above;
    return band;
  });
}
const bandPath = (band, x, y) => path(band.map(([at, , high]) => [at, high]), x, y) + path([...band].reverse().map(([at, low]) => [at, low]), x, y).replace("M", "L") + "Z";
function hover(picture, steps, x, tell, last) {
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  picture.append(cursor);
  tell(last);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), place = ((event.clientX - box.left) / box.width) * W;
    const at = steps.reduce((best, step) => (Math.abs(x(step) - place) < Math.abs(x(best) - place) ? step : best));
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(at));
    cursor.setAttribute("visibility", "visible");
    tell(at);
  });
  picture.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); tell(last); });
}

// --- evaluations -----------------------------------------------------------------------------------------------------

const ARMS = ["before", "after"];
const armClass = (arm) => (arm === "before" ? "f1" : arm === "after" ? "f0" : "fx");

function evaluationFigure(rows) {
  const width = 760, left = 190, scale = (rate) => left + (width - left - 150) * rate, row = 20;
  let y = 10;
  const picture = svg("svg", { role: "img", "aria-label": "Solve rates with 95 % confidence intervals; the table below holds the same numbers" });
  for (const { case: name, arms } of rows) {
    const shown = arms.filter(({ metrics }) => typeof metrics.solve_rate === "number");
    if (!shown.length) continue;
    picture.append(svg("text", { class: "name", x: left - 12, y: y + (shown.length * row) / 2 + 5, "text-anchor": "end" }, name));
    for (const { arm, metrics } of shown) {
      picture.append(svg("rect", { class: armClass(arm), x: left, y: y + 3, width: Math.max(1, scale(metrics.solve_rate) - left), height: row - 6, rx: 3 }));
      const interval = typeof metrics.ci95_low === "number";
      if (interval) picture.append(svg("path", { class: "ci", fill: "none", d: `M${scale(metrics.ci95_low)} ${y + row / 2}H${scale(metrics.ci95_high)}` }));
      const end = scale(interval ? Math.max(metrics.ci95_high, metrics.solve_rate) : metrics.solve_rate) + 8;
      picture.append(svg("text", { class: "value", x: end, y: y + row / 2 + 4 }, `${percent(metrics.solve_rate)} `, svg("tspan", { "font-weight": 400 }, arm)));
      y += row;
    }
    y += 12;
  }
  for (const rate of [0, 0.25, 0.5, 0.75, 1]) {
    picture.prepend(svg("line", { class: "grid", x1: scale(rate), x2: scale(rate), y1: 4, y2: y - 6 }));
    picture.append(svg("text", { x: scale(rate), y: y + 8, "text-anchor": "middle" }, 100 * rate + " %"));
  }
  picture.setAttribute("viewBox", `0 0 ${width} ${y + 14}`);
  return make("figure", { class: "wide" }, picture);
}
function evaluationTable(rows) {
  const columns = [{ name: "case", text: true }, { name: "arm", text: true }, ...["solved", "95 % interval", "gain", "best of 8", "turns", "calls", "episodes", "step"].map((name) => ({ name }))];
  return table(columns, rows.flatMap(({ case: name, arms }) => {
    const before = arms.find(({ arm }) => arm === "before");
    return arms.map(({ arm, step, metrics }, at) => [
      at ? "" : name, arm, percent(metrics.solve_rate),
      typeof metrics.ci95_low === "number" ? `${percent(metrics.ci95_low)} to ${percent(metrics.ci95_high)}` : "–",
      before && arm === "after" ? `${metrics.solve_rate >= before.metrics.solve_rate ? "+" : "−"}${(100 * Math.abs(metrics.solve_rate - before.metrics.solve_rate)).toFixed(1)} points` : "",
      typeof metrics.best_of_8 === "number" ? percent(metrics.best_of_8) : "–", number(metrics.turns_mean, 1), number(metrics.calls_mean, 1), number(metrics.episodes), number(step),
    ]);
  }));
}

const READABLE = { solve_rate: "solved", best_of_8: "best of 8", turns_mean: "turns per episode", calls_mean: "calls per episode", tokens_mean: "sampled tokens per episode", parallel_width: "calls in a turn", truncated_share: "stopped by a limit", no_call_share: "stopped by a turn without a call", bad_call_share: "calls that could not be executed", refused_share: "calls that a tool refused" };
function changedView({ case: name, rows }) {
  const isShare = (key) => key.startsWith("tool/") || key.endsWith("_share") || key === "solve_rate" || key === "best_of_8";
  const shown = rows.map(([key, before, after]) => {
    const share = isShare(key), write = share ? percent : (value) => number(value, 2), moved = after - before;
    const sign = Math.abs(moved) < 5e-4 ? "" : moved > 0 ? "+" : "−";
    return [READABLE[key] || key.replace("tool/", "calls: "), write(before), write(after), sign + (share ? `${(100 * Math.abs(moved)).toFixed(1)} points` : number(Math.abs(moved), 2))];
  });
  return make("div", { class: "card" }, make("p", { class: "soft" }, `The same tasks (${name}) with the same noise, before and after reinforcement learning. Traces marked "paired" below are one attempt at both moments.`),
    table([{ name: "", text: true }, { name: "before" }, { name: "after" }, { name: "change" }], shown));
}

// --- traces ----------------------------------------------------------------------------------------------------------

const diffLines = (lines) => make("div", { class: "diff" }, lines.map(([mark, text]) =>
  make("div", { class: mark === "+" ? "add" : mark === "-" ? "cut" : mark === "@" ? "hunk" : null }, mark === "@" ? text : `${mark} ${text}`)));

function callView(call) {
  const result = call.result, state = result === null ? "not executed" : result.ok ? "ok" : result.problem ? `error: ${result.problem}` : "error";
  const exit = result && result.exit_code !== null ? `, exit ${result.exit_code}` : "";
  const took = result && result.wall_s ? `, ${number(result.wall_s * 1000, 0)} ms` : "";
  const brief = call.arguments.map(([, value]) => value).join(", ").replace(/\s+/g, " ");
  return make("details", { class: "call" },
    make("summary", { class: "head" }, make("b", {}, call.name), make("span", { class: "brief mono" }, brief), make("span", { class: "right" + (result && result.ok ? "" : " error") }, state + exit + took)),
    call.arguments.map(([name, value]) => make("div", { class: "arguments mono" }, `${name}: ${value}`)),
    call.problem && make("div", { class: "error" }, call.problem),
    call.edit.length ? diffLines(call.edit) : null,
    result && result.text && make("pre", { class: "result", tabindex: 0 }, result.text));
}
function foldButton() {
  const button = make("button", { type: "button", onclick: () => {
    const calls = [...document.querySelectorAll("#trace details")], open = calls.some((call) => !call.open);
    for (const call of calls) call.open = open;
    button.textContent = open ? "Fold calls" : "Unfold calls";
  } }, "Unfold calls");
  return button;
}
function traceView(trace, openTwin) {
  const messages = trace.opening.map(({ role, text }) => make("div", { class: "message " + (role === "user" ? "user" : "") }, make("div", { class: "who" }, make("b", {}, role)), make("div", { class: "words" }, text)));
  const turns = trace.turns.map((turn) => make("div", { class: "message turn" },
    make("div", { class: "who" }, make("b", {}, `turn ${turn.index + 1}` + (turn.purpose === "act" ? "" : ` (${turn.purpose})`)), make("span", {}, `${turn.tokens} tokens, ${number(turn.generate_s, 2)} s sampling, ${number(turn.tools_s, 2)} s tools`)),
    turn.text && make("div", { class: "words" }, turn.text), turn.calls.map(callView)));
  const labels = Object.entries(trace.labels).map(([name, value]) => `${name}: ${value}`).join(" · ");
  const scores = trace.scores.map((score) => [score.reward, number(score.value), number(score.weight), Object.entries(score.parts).map(([name, value]) => `${name} ${number(value)}`).join(", ") + (score.note ? ` ${score.note}` : "")]);
  return [
    make("h3", {}, trace.id),
    make("div", {}, chip(trace.outcome + (trace.cause ? `: ${trace.cause}` : ""), trace.outcome), make("span", { class: "soft" }, `  stopped: ${trace.stop} · reward ${number(trace.reward)} · ${trace.turns.length} turns · ${number(trace.tokens)} tokens`)),
    trace.why && make("div", { class: "why" }, make("b", {}, "Why: "), trace.why),
    labels && make("div", { class: "soft" }, labels),
    make("div", { class: "tools" }, trace.turns.length ? foldButton() : null, openTwin && make("button", { type: "button", onclick: openTwin }, "The same attempt at the other moment")),
    ...messages, ...turns,
    trace.patch.length ? make("div", {}, make("h3", {}, "Patch"), trace.patch.map((file) => [make("div", { class: "mono soft" }, `${file.path} (${file.how})`), file.lines.length ? diffLines(file.lines) : null])) : make("div", { class: "soft" }, "Patch: nothing changed"),
    scores.length ? table([{ name: "reward", text: true }, { name: "value" }, { name: "weight" }, { name: "parts", text: true }], scores) : null,
    trace.faults.map((text) => make("div", { class: "error" }, text)),
    make("div", { class: "soft" }, Object.entries(trace.stats).map(([name, value]) => `${name} ${number(value)}`).join(" · ")),
  ].flat().filter(Boolean);
}
function browser(traces) {
  const picks = { purpose: "", outcome: "", text: "" };
  const list = make("div", { class: "card list", role: "navigation", "aria-label": "Traces" });
  const detail = make("article", { class: "card trace", id: "trace", "aria-live": "polite" });
  const count = make("span", { class: "soft" });
  const byId = new Map(traces.map((trace) => [trace.id, trace]));
  const open = (trace) => {
    for (const other of list.children) other.setAttribute("aria-current", String(other.dataset.id === trace.id));
    const twin = byId.get(trace.twin);
    detail.replaceChildren(...traceView(trace, twin && (() => open(twin))));
  };
  const refresh = () => {
    const kept = traces.filter((trace) => (!picks.purpose || trace.purpose === picks.purpose) && (!picks.outcome || trace.outcome === picks.outcome) && JSON.stringify(trace).toLowerCase().includes(picks.text.toLowerCase()));
    const buttons = kept.map((trace) => {
      return make("button", { type: "button", "data-id": trace.id, onclick: () => open(trace) },
        make("span", { class: "id" }, trace.task), make("span", { class: "dot " + trace.outcome }, trace.outcome),
        make("small", {}, `${trace.purpose} · ${trace.turns.length} turns · reward ${number(trace.reward)}${trace.twin ? " · paired" : ""}`),
        trace.why && make("small", { class: "clip" }, trace.why));
    });
    list.replaceChildren(...buttons);
    count.textContent = `${kept.length} of ${traces.length} embedded`;
    if (kept.length) open(kept.find((trace) => trace.twin) || kept[0]);
    else detail.replaceChildren(make("p", { class: "soft" }, "No trace matches."));
  };
  const choose = (name, label) => {
    const values = [...new Set(traces.map((trace) => trace[name]))].sort();
    const select = make("select", { onchange: () => { picks[name] = select.value; refresh(); } }, make("option", { value: "" }, "all"), values.map((value) => make("option", { value }, value)));
    return make("label", {}, label, select);
  };
  const search = make("input", { type: "search", placeholder: "Search in traces", "aria-label": "Search in traces", oninput: () => { picks.text = search.value; refresh(); } });
  refresh();
  return [make("div", { class: "tools" }, choose("purpose", "stage"), choose("outcome", "outcome"), search, count), make("div", { class: "browser" }, list, detail)];
}

// --- the page --------------------------------------------------------------------------------------------------------

function tiles(summary) {
  const has = (name) => typeof summary[name] === "number";
  const tile = (label, value, note) => make("div", { class: "card tile" }, make("div", { class: "label" }, label), make("div", { class: "value" }, value), make("div", { class: "note" }, note || " "));
  const pair = (label, name) => has(`${name}_after`) ? tile(label, percent(summary[`${name}_after`]), has(`${name}_before`) ? `${percent(summary[`${name}_before`])} before` : "") : null;
  const gain = summary.gain && typeof summary.gain.mean === "number" ? summary.gain : null;
  return [
    gain ? tile("Gain of training", `${gain.mean < 0 ? "−" : "+"}${(100 * Math.abs(gain.mean)).toFixed(1)}`, `points; 95 %: ${(100 * gain.ci95_low).toFixed(1)} to ${(100 * gain.ci95_high).toFixed(1)}`) : null,
    pair("Solved, sampled", "solve_rate"), pair("Solved, greedy", "greedy"), pair("Best of 8", "best_of_8"),
    tile("Wall time", duration(data.spent_s), (data.spent_s < 3600 ? "min:s" : "h:min:s") + (data.starts > 1 ? `, ${data.starts} starts` : "")),
    tile("Episodes", number(data.episodes), has("episodes_per_s") ? `${number(summary.episodes_per_s, 1)} a second` : ""),
    has("turns_mean") ? tile("Turns per episode", number(summary.turns_mean, 1), has("calls_mean") ? `${number(summary.calls_mean, 1)} calls` : "") : null,
    has("parity_p999") ? tile("Parity, p99.9", number(summary.parity_p999), "|Δ log p|, in fp32 at most 1e-5") : null,
  ];
}
function flat(value, prefix = "") {
  if (value === null) return [[prefix, "–"]];
  if (typeof value !== "object") return [[prefix, typeof value === "number" && (Math.abs(value) >= 1 || Math.abs(value) < 0.001) ? number(value) : typeof value === "number" ? String(+value.toFixed(4)) : String(value)]];
  if (Array.isArray(value) && value.some((item) => item !== null && typeof item === "object")) return value.flatMap((item, at) => flat(item, `${prefix}[${at}]`));
  if (Array.isArray(value)) return [[prefix, value.map((item) => number(item)).join(" to ")]];
  return Object.entries(value).flatMap(([name, item]) => flat(item, prefix ? `${prefix}.${name}` : name));
}
const facts = (value) => make("div", { class: "card facts" }, flat(value).map(([name, text]) => make("div", {}, make("span", { class: "soft" }, name), make("span", {}, text))));

function stagesView() {
  const total = data.stages.reduce((sum, stage) => sum + stage.spent_s, 0) || 1;
  const parts = data.stages.map((stage, at) => {
    const part = make("div", { class: "f" + (at % 8), title: `${stage.name}: ${duration(stage.spent_s)}` });
    part.style.flex = String(Math.max(stage.spent_s / total, 0.01));
    return part;
  });
  const rows = data.stages.map((stage, at) => [make("span", {}, make("span", { class: `key f${at % 8}` }), stage.name), stage.ended ? "ended" : data.status, `${number(stage.done)}${stage.steps ? ` / ${number(stage.steps)}` : ""}`, duration(stage.spent_s)]);
  if (data.spent_s - total > 1) rows.push(["evaluation and the rest", "", "", duration(data.spent_s - total)]);
  return make("div", { class: "card" }, make("h3", {}, "Time by stage"), make("div", { class: "bar", "aria-hidden": "true" }, parts), table([{ name: "stage", text: true }, { name: "state", text: true }, { name: "steps" }, { name: "time" }], rows));
}
function outcomesView() {
  const rows = Object.entries(data.outcomes).flatMap(([purpose, counts]) => {
    const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
    return Object.entries(counts).map(([outcome, count]) => [purpose, make("span", { class: "dot " + outcome.split(":")[0] }, outcome), number(count), percent(count / total)]);
  });
  return make("div", { class: "card" }, make("h3", {}, "Episodes by outcome"), table([{ name: "purpose", text: true }, { name: "outcome", text: true }, { name: "count" }, { name: "share" }], rows));
}
function windowsView({ table: rows, names, charts }) {
  const columns = [{ name: "episodes of", text: true }, { name: "all" }, { name: "several windows" }, ...names.map((name) => ({ name }))];
  const shown = rows.map(([purpose, all, several, means]) => [purpose, number(all), number(several), ...names.map((name) => number(means[name]))]);
  return [make("div", { class: "card" }, make("p", { class: "soft" }, "Means over the episodes that filled at least one window and went on; a probe is a reward that weighs nothing."), table(columns, shown)),
    charts.length ? make("div", { class: "charts" }, charts.map(chartFigure)) : null];
}
function ledgerView() {
  const text = (value) => (value && typeof value === "object" ? Object.entries(value).map(([name, count]) => `${name}: ${number(count)}`).join(", ") || "none" : number(value));
  const rows = data.ledger.rows.map(([name, value]) => [name, text(value)]);
  return make("div", { class: "card" }, make("h3", {}, `Ledger of ${data.ledger.stage} after step ${number(data.ledger.step)}`), table([{ name: "what", text: true }, { name: "so far", text: true }], rows));
}
function pluginRows() {
  const rows = Array.isArray(data.plugins) ? data.plugins : Object.entries(data.plugins.plugins || data.plugins).map(([name, item]) => ({ name, ...(typeof item === "object" ? item : { version: item }) }));
  return rows.map((row) => (typeof row === "object" && row ? [row.name, row.dist || "", row.version || ""] : [row, "", ""]).map((cell) => String(cell ?? "")));
}
function themeButton() {
  const root = document.documentElement, dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = make("button", { type: "button", onclick: () => { root.dataset.theme = dark() ? "light" : "dark"; label(); } });
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  label();
  return button;
}
function build() {
  const started = data.started_s ? new Date(data.started_s * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC" : "not started";
  const parts = [make("div", { class: "tiles" }, tiles(data.summary || {}))];
  if (data.evaluations.length) parts.push(section("evaluations", "Evaluations", make("div", { class: "card" }, evaluationFigure(data.evaluations), evaluationTable(data.evaluations))));
  if (data.changed) parts.push(section("changed", "What the policy does differently", changedView(data.changed)));
  for (const stage of [...data.stages].reverse())
    if (stage.charts.length) parts.push(section(`stage-${data.stages.indexOf(stage)}`, `Curves of ${stage.name}`, make("div", { class: "charts" }, stage.charts.map(chartFigure))));
  if (data.windows) parts.push(section("windows", "Episodes of several windows", ...windowsView(data.windows)));
  if (data.traces.length) parts.push(section("traces", "Traces", ...browser(data.traces)));
  parts.push(section("run", "The run", make("div", { class: "two" }, data.stages.length ? stagesView() : null, data.episodes ? outcomesView() : null, data.ledger ? ledgerView() : null)));
  if (data.faults.length) parts.push(section("faults", "Faults", make("div", { class: "card" }, table([{ name: "where", text: true }, { name: "plugin", text: true }, { name: "error", text: true }, { name: "times" }], data.faults.map((row) => row.map(String))))));
  const { evaluations, ...shown } = data.summary || {};
  if (Object.keys(shown).length) parts.push(section("summary", "Summary", make("details", {}, make("summary", {}, "Every figure of summary.json"), facts(shown))));
  parts.push(section("setup", "Plugins and run file", make("div", { class: "card" }, table([{ name: "plugin", text: true }, { name: "distribution", text: true }, { name: "version", text: true }], pluginRows()), data.config ? make("details", {}, make("summary", {}, "config.json"), make("pre", {}, data.config)) : null)));
  const links = parts.filter((part) => part.id).map((part) => make("a", { href: "#" + part.id }, part.querySelector("h2").textContent));
  document.getElementById("app").append(
    make("header", {}, make("h1", {}, data.name), chip(data.status, data.status), make("span", { class: "soft" }, started), themeButton()),
    make("nav", { "aria-label": "Sections" }, links), make("main", {}, parts));
}
build();
