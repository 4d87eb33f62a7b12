"use strict";
// Legend buttons hide and show an arm everywhere; the cursor of a plot follows the pointer or the arrow keys.
const series = JSON.parse(document.getElementById("series").textContent);
const hidden = new Set();

for (const button of document.querySelectorAll("button[data-toggle]")) {
  button.addEventListener("click", () => {
    const arm = Number(button.dataset.toggle);
    const show = hidden.delete(arm);
    if (!show) hidden.add(arm);
    button.setAttribute("aria-pressed", String(show));
    for (const mark of document.querySelectorAll(`svg [data-arm="${arm}"]`)) mark.classList.toggle("off", !show);
  });
}

const seeds = document.getElementById("seeds");
if (seeds) {
  seeds.addEventListener("click", () => {
    const off = document.body.classList.toggle("no-seeds");
    seeds.setAttribute("aria-pressed", String(!off));
  });
}

// the last entry at or before `version`, or -1
function lastAt(versions, version) {
  let place = -1;
  while (place + 1 < versions.length && versions[place + 1] <= version) place += 1;
  return place;
}

function heightOf(plot, value) {
  const low = Number(plot.low), top = Number(plot.top);
  const share = plot.log === undefined ? (value - low) / (top - low) : Math.log(Math.max(value, low) / low) / Math.log(top / low);
  return Number(plot.bottom) + Math.min(Math.max(share, 0), 1) * (Number(plot.ceiling) - Number(plot.bottom));
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

for (const figure of document.querySelectorAll("figure[data-metric]")) {
  const arms = series[figure.dataset.metric];
  const versions = [...new Set(arms.flatMap((arm) => arm.versions))].sort((a, b) => a - b);
  const tip = figure.querySelector(".tip");
  let at = -1;

  function visible() {
    return [...figure.querySelectorAll("svg")].find((svg) => svg.getClientRects().length);
  }

  function clear() {
    tip.hidden = true;
    for (const svg of figure.querySelectorAll("svg")) {
      svg.querySelector(".cursor").classList.remove("on");
      for (const dot of svg.querySelectorAll(".dot")) dot.remove();
    }
  }

  function place(index) {
    clear();
    at = Math.min(Math.max(index, 0), versions.length - 1);
    const svg = visible(), version = versions[at], plot = svg.dataset;
    const start = Number(plot.start), stop = Number(plot.stop);
    const x = start + (version / Number(plot.high)) * (stop - start);
    const cursor = svg.querySelector(".cursor");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x);
    cursor.classList.add("on");
    tip.replaceChildren(line("update", String(version), ""));
    for (const arm of arms) {
      const entry = lastAt(arm.versions, version);
      if (hidden.has(arm.index) || entry < 0) continue;
      tip.append(line(`${arm.letter} ${arm.name}`, arm.mean[entry].toPrecision(3), arm.kind));
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      dot.setAttribute("class", `dot ${arm.kind}`);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", heightOf(plot, arm.mean[entry]));
      dot.setAttribute("r", 3.5);
      svg.append(dot);
    }
    tip.hidden = false;
    const box = svg.getBoundingClientRect(), own = figure.getBoundingClientRect();
    const left = box.left - own.left + (x / svg.viewBox.baseVal.width) * box.width;
    const room = own.width - left - tip.offsetWidth - 14;
    tip.style.left = `${Math.max(4, room > 0 ? left + 10 : left - tip.offsetWidth - 10)}px`;
    tip.style.top = `${box.top - own.top + 8}px`;
  }

  figure.addEventListener("pointermove", (event) => {
    const svg = visible(), box = svg.getBoundingClientRect(), plot = svg.dataset;
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const version = ((x - Number(plot.start)) / (Number(plot.stop) - Number(plot.start))) * Number(plot.high);
    let nearest = 0;
    versions.forEach((one, index) => {
      if (Math.abs(one - version) < Math.abs(versions[nearest] - version)) nearest = index;
    });
    place(nearest);
  });
  figure.addEventListener("pointerleave", clear);
  figure.addEventListener("blur", clear);
  figure.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: versions.length - 1 };
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
