"use strict";
// Draws the plots anew when the reader changes something: the same shapes, scales and ticks as the page was written with.
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const LETTERS = 3, LEVELS = DIGITS.length ** LETTERS, HALF = LEVELS / 2, MOST_DECADES = 6, FAR_DECADES = 3, LONGEST_NAME = 26, NOTE_WIDTH = 130;
const page = JSON.parse(document.getElementById("series").textContent);
const shapes = new Map([...document.querySelectorAll("button[data-toggle]")].map(
  (button) => [Number(button.dataset.toggle), button.querySelector(".mark").getAttribute("d")]));

// ---- numbers out of letters

function codes(text) {
  const found = [];
  for (let place = 0; place < text.length; place += LETTERS)
    found.push([...text.slice(place, place + LETTERS)].reduce((code, letter) => code * DIGITS.length + DIGITS.indexOf(letter), 0));
  return found;
}

function valueOf(code, plot) {
  if (!plot.log) return plot.low + (code / (LEVELS - 1)) * (plot.high - plot.low);
  const steps = Math.abs(code - HALF);
  if (!steps) return 0;
  return Math.sign(code - HALF) * 10 ** (plot.low + ((steps - 1) / (HALF - 2)) * (plot.high - plot.low));
}

for (const plot of Object.values(page.plots)) {
  for (const arm of plot.arms) {
    for (const run of arm.runs) {
      run.versions = codes(run.at).map((code) => (code / (LEVELS - 1)) * page.horizon);
      run.values = codes(run.values).map((code) => valueOf(code, plot));
    }
    for (const edge of ["lower", "upper"]) if (arm[edge]) arm[edge] = codes(arm[edge]).map((code) => valueOf(code, plot));
  }
}

// ---- scales

function fit(values, start, stop, log) {
  const least = Math.min(...values), most = Math.max(...values);
  let low, high;
  if (log) {
    low = Math.max(least, most / 10 ** MOST_DECADES);
    const room = Math.max((most / low) ** 0.06, 1.15);
    [low, high] = [low / room, most * room];
  } else {
    const room = 0.06 * (most - least) || 0.1 * Math.abs(most) || 1;
    [low, high] = [least >= 0 && least < room ? 0 : least - room, most + room];
  }
  return scale(low, high, start, stop, log);
}

function scale(low, high, start, stop, log) {
  const share = log ? (value) => Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  const map = (value) => start + Math.min(Math.max(share(value), 0), 1) * (stop - start);
  return Object.assign(map, { low, high, start, stop, log, shows: (value) => !log || value >= low });
}

function linearTicks(low, high, about) {
  const rough = (high - low) / about, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((multiple) => multiple * power).find((one) => one >= rough * 0.999);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index <= Math.floor(high / step + 1e-9); index += 1)
    ticks.push(Number((index * step).toPrecision(10)));
  return ticks;
}

function ticksOf(along, about) {
  if (!along.log) return linearTicks(along.low, along.high, about);
  const tens = [], finer = [];
  for (let decade = Math.floor(Math.log10(along.low)); decade <= Math.ceil(Math.log10(along.high)); decade += 1)
    for (const multiple of [1, 2, 5]) {
      const tick = Number(`${multiple}e${decade}`);
      if (tick < along.low || tick > along.high) continue;
      finer.push(tick);
      if (multiple === 1) tens.push(tick);
    }
  if (tens.length >= 2) return tens;
  return finer.length >= 3 ? finer : linearTicks(along.low, along.high, 5);
}

function tickLabel(value) {
  if (value === 0 || (Math.abs(value) * 1.001 > 1e-3 && Math.abs(value) * 1.001 < 1e5)) return String(Number(value.toPrecision(10)));
  const exponent = Math.floor(Math.log10(Math.abs(value)) + 1e-9), mantissa = value / 10 ** exponent;
  const power = "10" + [...String(exponent)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("");
  return Math.abs(mantissa - 1) < 1e-6 ? power : `${Number(mantissa.toPrecision(10))}·${power}`;
}

// ---- what is drawn: smoothed values, updates or tokens, and which arms lie too far below

function smoothed(at, values, halfLife, log) {
  if (!halfLife) return values;
  let total = 0, weight = 0, last = null;
  return values.map((value, index) => {
    if (log && !(value > 0)) return value;
    const decay = last === null ? 0 : 2 ** ((last - at[index]) / halfLife);
    total = total * decay + (log ? Math.log(value) : value);
    weight = weight * decay + 1;
    last = at[index];
    return log ? Math.exp(total / weight) : total / weight;
  });
}

function tokensAt(arm, version) {
  const known = page.tokens[arm];
  if (!known) return null;
  let next = known.versions.findIndex((one) => one >= version);
  if (next < 0) next = known.versions.length - 1;
  if (next === 0) return known.tokens[0];
  const [before, after] = [known.versions[next - 1], known.versions[next]];
  const share = Math.min((version - before) / (after - before), 1);
  return known.tokens[next - 1] + share * (known.tokens[next] - known.tokens[next - 1]);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b), half = sorted.length / 2;
  return sorted.length % 2 ? sorted[Math.floor(half)] : (sorted[half - 1] + sorted[half]) / 2;
}

// of an arm's mean; of its runs, where it has no mean
function sizes(arm) {
  return (arm.mean.length ? arm.mean : arm.runs.flatMap((run) => run.values)).map(Math.abs).filter((size) => size > 0);
}

function farBelow(arms) {
  const levels = arms.map((arm) => ({ arm, sizes: sizes(arm) })).filter((one) => one.sizes.length)
    .map(({ arm, sizes }) => ({ arm, middle: median(sizes), most: Math.max(...sizes) }));
  levels.sort((a, b) => a.middle - b.middle || a.most - b.most);
  for (let place = levels.length - 1; place > 0; place -= 1) {
    const below = levels.slice(0, place);
    if (levels[place].middle > 10 ** FAR_DECADES * Math.max(...below.map((one) => one.most))) return below.map((one) => one.arm);
  }
  return [];
}

// view: {axis, log, halfLife (a share of the axis), hidden}
function prepared(plot, view) {
  const log = plot.log && view.log, halfLife = view.halfLife * page.horizon;
  const x = (arm) => (version) => (view.axis === "tokens" ? tokensAt(arm.index, version) : version);
  return plot.arms.filter((arm) => !view.hidden.has(arm.index) && (view.axis !== "tokens" || page.tokens[arm.index])).map((arm) => ({
    ...arm,
    x: x(arm),
    at: arm.versions.map(x(arm)),
    measured: arm.mean,
    mean: smoothed(arm.versions, arm.mean, halfLife, log),
    lower: arm.lower && smoothed(arm.versions, arm.lower, halfLife, log),
    upper: arm.upper && smoothed(arm.versions, arm.upper, halfLife, log),
    runs: arm.runs.map((run) => ({ ...run, at: run.versions.map(x(arm)), values: smoothed(run.versions, run.values, halfLife, log) })),
  }));
}

// ---- shapes

function el(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat(2).filter((child) => child !== null));
  return made;
}

const pixels = (value) => String(Number(value.toFixed(1)) || 0);

// breaks: the places before which the line has a gap
function path(at, values, across, up, breaks = []) {
  let d = "", last = null;
  at.forEach((where, index) => {
    if (breaks.includes(index)) last = null;
    if (!up.shows(values[index])) { last = null; return; }
    const here = [Number(across(where).toFixed(1)), Number(up(values[index]).toFixed(1))];
    const second = last ? pixels(here[1] - last[1]) : "";
    d += last ? `l${pixels(here[0] - last[0])}${second.startsWith("-") ? "" : " "}${second}` : `M${pixels(here[0])} ${pixels(here[1])}`;
    last = here;
  });
  return d;
}

function outline(arm, across, up) {
  const edge = (values) => values.map((value) => (up.log ? Math.max(value, up.low) : value));
  return [0, ...arm.breaks].map((first, number) => {
    const part = (values) => values.slice(first, arm.breaks[number]);
    const upper = path(part(arm.at), edge(part(arm.upper)), across, up);
    const lower = path(part(arm.at).reverse(), edge(part(arm.lower)).reverse(), across, up);
    return `${upper}L${lower.slice(1)}Z`;
  }).join("");
}

const mark = (arm, x, y) => el("path", { class: "mark", d: shapes.get(arm.index), transform: `translate(${pixels(x)} ${pixels(y)})` });

function flag(x, stop, bottom) {
  const toward = x > stop - 9 ? -8 : 8;
  return el("path", { class: "flag", d: `M${pixels(x)} ${pixels(bottom)}v-17l${toward} 4l${-toward} 4` });
}

function armShapes(arm, across, up) {
  const seeds = arm.runs.map((run) => el("path", { class: "seed", d: path(run.at, run.values, across, up) }));
  const stops = arm.runs.filter((run) => run.stopped !== null).map((run) =>
    el("path", { class: "stop", d: `M${pixels(across(arm.x(run.stopped)) - 4)} ${pixels(up(run.values.at(-1)) - 4)}l8 8m0 -8l-8 8` }));
  const flags = arm.runs.filter((run) => run.onset !== null).map((run) => flag(across(arm.x(run.onset)), across.stop, up.start));
  const step = Math.max(Math.floor(arm.mean.length / 5), 1);
  const marks = [];
  for (let place = step > 1 ? (arm.index * 2) % step : 0; place < arm.mean.length; place += step)
    if (up.shows(arm.mean[place])) marks.push(mark(arm, across(arm.at[place]), up(arm.mean[place])));
  const small = up.log ? arm.mean.flatMap((value, index) => (value > 0 && value < up.low ? [`M${pixels(across(arm.at[index]))} ${pixels(up.start)}v-6`] : [])) : [];
  return el("g", { class: arm.kind, "data-arm": arm.index },
    arm.upper ? el("path", { class: "band", d: outline(arm, across, up) }) : null,
    el("g", { class: "seeds" }, seeds), stops, flags,
    arm.mean.length ? el("path", { class: "mean", d: path(arm.at, arm.mean, across, up, arm.breaks) }) : null,
    small.length ? el("path", { class: "floor", d: small.join("") }) : null,
    el("g", { class: "marks" }, marks));
}

// 50k, 1.5M: what a number of tokens is called
function tokenLabel(value) {
  const [size, word] = value >= 1e9 ? [1e9, "G"] : value >= 1e6 ? [1e6, "M"] : value >= 1e3 ? [1e3, "k"] : [1, ""];
  return `${Number((value / size).toPrecision(4))}${word}`;
}

function axes(across, up, axis) {
  const left = { x1: across.start, x2: across.stop };
  return el("g", {},
    el("g", { class: "grid" }, ticksOf(up, 5).map((tick) => el("line", { ...left, y1: pixels(up(tick)), y2: pixels(up(tick)) }))),
    el("line", { class: "axis", ...left, y1: up.start, y2: up.start }),
    el("g", { class: "ticks y" }, ticksOf(up, 5).map((tick) => el("text", { x: across.start - 7, y: pixels(up(tick) + 4) }, tickLabel(tick)))),
    el("g", { class: "ticks x" }, ticksOf(across, 5).map((tick) => el("text", { x: pixels(across(tick)), y: up.start + 16 }, (axis === "tokens" ? tokenLabel : tickLabel)(tick)))),
    el("text", { class: "unit", x: across.stop, y: up.start + 31 }, axis === "tokens" ? "response tokens" : "updates"));
}

function apart(heights, distance, low, high) {
  const placed = [];
  for (const height of heights) placed.push(Math.max(height, placed.length ? placed.at(-1) + distance : low));
  let limit = high;
  for (let place = placed.length - 1; place >= 0; place -= 1) {
    placed[place] = Math.min(placed[place], limit);
    limit = placed[place] - distance;
  }
  return placed;
}

function endLabels(arms, up, named, stop) {
  const ends = arms.filter((arm) => arm.mean.length).map((arm) => [up(arm.mean.at(-1)), arm]).sort((a, b) => a[0] - b[0]);
  const heights = apart(ends.map((end) => end[0]), 14, up.stop + 5, up.start - 2);
  return el("g", { class: "ends" }, ends.map(([, arm], index) => {
    const full = named ? `${arm.letter} ${arm.name}` : arm.letter;
    const text = [...full].length > LONGEST_NAME ? `${[...full].slice(0, LONGEST_NAME - 1).join("")}…` : full;
    return el("g", { class: arm.kind, "data-arm": arm.index }, mark(arm, stop + 10, heights[index]), el("text", { x: stop + 19, y: pixels(heights[index] + 4) }, text));
  }));
}

function belowNote(arm, place, across, up) {
  const x = across.start + NOTE_WIDTH * place, y = up.start + 31, level = Number(median(sizes(arm)).toPrecision(1));
  return el("g", { class: `${arm.kind} below`, "data-arm": arm.index }, mark(arm, x + 4, y - 4),
    el("text", { x: x + 13, y }, `${arm.letter} is below: ${tickLabel(level)}`));
}

// The scales and arms of one svg under a view; the cursor uses them too.
function laidOut(svg, plot, view) {
  const arms = prepared(plot, view), log = plot.log && view.log;
  const far = log ? farBelow(arms) : [];
  const shown = arms.filter((arm) => !far.includes(arm));
  const values = shown.flatMap((arm) => [...arm.runs.flatMap((run) => run.values), ...(arm.upper ? [...arm.lower, ...arm.upper] : arm.mean)])
    .filter((value) => Number.isFinite(value) && (value > 0 || !log));
  const [start, stop, bottom, ceiling] = ["start", "stop", "bottom", "ceiling"].map((name) => Number(svg.dataset[name]));
  const end = view.axis === "tokens" ? Math.max(1, ...page.tokens.filter(Boolean).map((known) => known.tokens.at(-1))) : page.horizon;
  return { arms, shown, far, across: scale(0, end, start, stop, false), up: fit(values.length ? values : [0, 1], bottom, ceiling, log && values.length > 0) };
}

function draw(svg, plot, view) {
  const { shown, far, across, up } = laidOut(svg, plot, view);
  svg.querySelector(".drawn").replaceChildren(
    axes(across, up, view.axis),
    ...shown.map((arm) => armShapes(arm, across, up)),
    ...far.map((arm, place) => belowNote(arm, place, across, up)),
    endLabels(shown, up, "named" in svg.dataset, across.stop));
}
