"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const W = 560, H = 250, LEFT = 48, RIGHT = 12, TOP = 10, BOTTOM = 42;
  const make = (parent, name, values, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  const short = (value) => String(Number(value.toPrecision(3)));
  // Round numbers from 0 to the last one that fits, five at most beside 0.
  const ticks = (top) => {
    const power = 10 ** Math.floor(Math.log10(top / 5));
    const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => top / each <= 5);
    return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step);
  };
  const draw = (id, points, rounds, top, budget, label) => {
    const figure = document.getElementById(id);
    figure.hidden = points.length === 0;
    if (figure.hidden) return;
    const svg = figure.querySelector("svg");
    svg.replaceChildren();
    const last = Math.max(rounds, points[points.length - 1][0], 1);
    const x = (value) => LEFT + (W - LEFT - RIGHT) * value / last;
    const y = (value) => H - BOTTOM - (H - TOP - BOTTOM) * Math.min(Math.max(value / top, 0), 1);
    for (const value of ticks(top)) {
      make(svg, "line", { x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value), stroke: "var(--grid)" });
      make(svg, "text", { x: LEFT - 6, y: y(value) + 5, "text-anchor": "end", "font-size": 15 }, short(value));
    }
    for (const value of ticks(last)) {
      make(svg, "text", { x: x(value), y: H - BOTTOM + 18, "text-anchor": value > 0.95 * last ? "end" : "middle", "font-size": 15 }, short(value));
    }
    make(svg, "text", { x: (LEFT + W - RIGHT) / 2, y: H - 4, "text-anchor": "middle", "font-size": 15 }, label);
    if (budget) make(svg, "line", { x1: LEFT, x2: W - RIGHT, y1: y(budget), y2: y(budget), stroke: "var(--ink)", "stroke-dasharray": "6 4" });
    const path = points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");
    make(svg, "polyline", { points: path, fill: "none", "stroke-width": 2, stroke: id === "accuracy" ? "var(--series-0)" : "var(--series-1)" });
    const [a, b] = points[points.length - 1];
    make(svg, "circle", { cx: x(a), cy: y(b), r: 4, fill: id === "accuracy" ? "var(--series-0)" : "var(--series-1)" });
    figure.querySelector("figcaption").textContent = `${label} ${a}: ${short(b)}${budget ? ` of ${short(budget)}` : ""}`;
  };
  const show = (state) => {
    document.getElementById("facts").replaceChildren(...state.facts.map(([name, text, part]) => {
      const box = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
      if (text.length > 14) box.className = "long";
      dt.textContent = name || "ended";
      dd.textContent = text;
      if (part !== null) {
        const bar = document.createElement("progress");
        bar.max = 1;
        bar.value = part;
        bar.setAttribute("aria-label", name);
        dd.append(bar);
      }
      box.append(dt, dd);
      return box;
    }));
    const of = (i, scale) => state.points.filter((each) => each[i] !== null).map((each) => [each[0], scale * each[i]]);
    draw("accuracy", of(1, 100), state.rounds, 100, null, state.round);
    const spent = state.budget === null ? [] : of(2, 1);
    const most = spent.reduce((high, each) => Math.max(high, each[1]), state.budget || 0);
    draw("epsilon", spent, state.rounds, 1.08 * most, state.budget, state.round);
  };
  const status = document.getElementById("status");
  const stream = new EventSource("events");
  stream.onopen = () => { status.textContent = "Running."; };
  stream.onmessage = (event) => {
    const state = JSON.parse(event.data);
    show(state);
    if (state.done) {
      stream.close();
      status.textContent = "Finished. The report follows.";
      location.replace("report");
    }
  };
  stream.addEventListener("gone", (event) => {
    stream.close();
    status.textContent = JSON.parse(event.data);
  });
  stream.onerror = () => { status.textContent = "Not connected: the program that serves this page has stopped, or is busy."; };
})();
