"use strict";
// The controls of the curves, and the cursor of a plot, which follows the pointer or the arrow keys.
const view = { axis: "updates", log: true, halfLife: 0, hidden: new Set() };
const figures = [...document.querySelectorAll("figure[data-metric]")];
const plotOf = (figure) => page.plots[figure.dataset.metric];

function redraw() {
  for (const figure of figures) {
    figure.dispatchEvent(new Event("clear"));
    for (const svg of figure.querySelectorAll("svg")) draw(svg, plotOf(figure), view);
  }
}

for (const part of document.querySelectorAll(".controls")) part.hidden = false;

for (const button of document.querySelectorAll("button[data-toggle]")) {
  button.addEventListener("click", () => {
    const arm = Number(button.dataset.toggle);
    const show = view.hidden.delete(arm);
    if (!show) view.hidden.add(arm);
    button.setAttribute("aria-pressed", String(show));
    redraw();
    for (const mark of document.querySelectorAll(`svg [data-arm="${arm}"]`)) mark.classList.toggle("off", !show);
  });
}

function press(id, act) {
  const button = document.getElementById(id);
  button?.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    act(on);
  });
}
press("seeds", (on) => document.body.classList.toggle("no-seeds", !on));
press("logarithmic", (on) => { view.log = on; redraw(); });

for (const radio of document.querySelectorAll("input[name=axis]"))
  radio.addEventListener("change", () => { view.axis = radio.value; redraw(); });

const slider = document.getElementById("smoothing");
slider?.addEventListener("input", () => {
  view.halfLife = Number(slider.value) / 100;
  const updates = Math.round(view.halfLife * page.horizon * 10) / 10;
  const text = view.halfLife ? `half-life ${updates} updates` : "off";
  slider.setAttribute("aria-valuetext", text);
  document.getElementById("half-life").textContent = text;
  redraw();
});

// the last entry at or before `version`, or -1
function lastAt(versions, version) {
  let place = -1;
  while (place + 1 < versions.length && versions[place + 1] <= version) place += 1;
  return place;
}

function line(name, value, kind) {
  const row = document.createElement("p");
  row.className = kind;
  const label = document.createElement("span"), number = document.createElement("b");
  label.textContent = name;
  number.textContent = value;
  row.append(label, number);
  return row;
}

for (const figure of figures) {
  const plot = plotOf(figure), tip = figure.querySelector(".tip");
  let at = -1;

  function visible() {
    return [...figure.querySelectorAll("svg")].find((svg) => svg.getClientRects().length);
  }

  // where the cursor may stand: on the axis of updates or of tokens, ascending
  function stands(arms) {
    return [...new Set(arms.flatMap((arm) => arm.at))].sort((a, b) => a - b);
  }

  function clear() {
    tip.hidden = true;
    for (const svg of figure.querySelectorAll("svg")) {
      svg.querySelector(".cursor").classList.remove("on");
      for (const dot of svg.querySelectorAll(".dot")) dot.remove();
    }
  }

  function place(choose) {
    clear();
    const svg = visible(), { arms, far, across, up } = laidOut(svg, plot, view), places = stands(arms);
    if (!places.length) return;
    at = Math.min(Math.max(choose(places, across), 0), places.length - 1);
    const x = across(places[at]), cursor = svg.querySelector(".cursor");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x);
    cursor.classList.add("on");
    tip.replaceChildren(line(view.axis === "tokens" ? "tokens" : "update", Math.round(places[at]).toLocaleString("en"), ""));
    for (const arm of arms) {
      const entry = lastAt(arm.at, places[at]);
      if (entry < 0) continue;
      const earlier = arm.at[entry] === places[at] ? "" : ` at ${Math.round(arm.at[entry]).toLocaleString("en")}`;
      tip.append(line(`${arm.letter} ${arm.name}`, arm.measured[entry].toPrecision(3) + earlier, arm.kind));
      if (!far.includes(arm) && up.shows(arm.measured[entry]))
        svg.append(el("circle", { class: `dot ${arm.kind}`, cx: x, cy: up(arm.measured[entry]), r: 3.5 }));
    }
    tip.hidden = false;
    const box = svg.getBoundingClientRect(), own = figure.getBoundingClientRect();
    const left = box.left - own.left + (x / svg.viewBox.baseVal.width) * box.width;
    const room = own.width - left - tip.offsetWidth - 14;
    tip.style.left = `${Math.max(4, room > 0 ? left + 10 : left - tip.offsetWidth - 10)}px`;
    tip.style.top = `${box.top - own.top + 8}px`;
  }

  figure.addEventListener("pointermove", (event) => {
    const svg = visible(), box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    place((places, across) => places.reduce((near, one, index) => (Math.abs(across(one) - x) < Math.abs(across(places[near]) - x) ? index : near), 0));
  });
  figure.addEventListener("pointerleave", clear);
  figure.addEventListener("blur", clear);
  figure.addEventListener("clear", clear);
  figure.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: () => at + 1, ArrowLeft: () => at - 1, Home: () => 0, End: (places) => places.length - 1 };
    if (event.key === "Escape") clear();
    if (!(event.key in moves)) return;
    event.preventDefault();
    place(moves[event.key]);
  });
}

// a printed page has no closed parts
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details.printed")) part.open = true;
});
