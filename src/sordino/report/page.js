"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const short = (value) => value === null || value === undefined ? "-" : String(Number(value.toPrecision(6)));

  // A command that names the folder of this page, where the page knows it.
  if (location.protocol === "file:") {
    const path = decodeURIComponent(location.pathname).replace(/\/[^/]*$/, "") || "/";
    const quoted = /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
    for (const place of document.querySelectorAll("[data-here]")) place.textContent = quoted;
    for (const note of document.querySelectorAll("[data-else]")) note.hidden = true;
  }

  const save = (name, kind, text) => {
    const link = document.createElement("a");
    link.href = `data:${kind};charset=utf-8,${encodeURIComponent(text)}`;
    link.download = name;
    link.click();
  };
  const quote = (cell) => {
    if (typeof cell === "number") return String(cell);
    // What a spreadsheet would take for a formula, at the start or behind what it may take for a border of cells.
    const text = cell === null || cell === undefined ? "" : String(cell).replace(/(^|[,;|"\t\r\n])(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])/g, "$1'");
    return /[",;|\t\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = (rows) => rows.map((row) => row.map(quote).join(",")).join("\r\n") + "\r\n";

  const columns = (told) => told.panels.flatMap((panel) => panel.series.map((series) => ({
    name: series.name === panel.y.label || !panel.y.label ? series.name || panel.y.label
      : panel.series.length === 1 && told.panels.length === 1 ? panel.y.label : `${panel.y.label}: ${series.name}`,
    values: new Map(series.x.map((x, i) => [x, series.y[i]])),
  })));
  const table = (told) => {
    if (told.table) return [told.table.head, ...told.table.rows];
    const found = columns(told);
    const xs = [...new Set(found.flatMap((each) => [...each.values.keys()]))].sort((a, b) => a - b);
    const label = told.panels.map((panel) => panel.x.label).reverse().find(Boolean) || "x";
    return [[label, ...found.map((each) => each.name)], ...xs.map((x) => [x, ...found.map((each) => each.values.get(x) ?? null)])];
  };

  // The picture by itself: colours as numbers, since there is no style sheet.
  const alone = (svg) => {
    const copy = svg.cloneNode(true);
    copy.querySelectorAll(".cursor").forEach((each) => each.remove());
    copy.removeAttribute("tabindex");
    const style = document.createElementNS(SVG, "style");
    style.textContent = "text { font-family: 'DejaVu Sans', sans-serif; }";
    copy.prepend(style);
    const text = new XMLSerializer().serializeToString(copy).replace(/var\(--[\w-]+, (#[0-9a-f]{6})\)/g, "$1");
    return `<?xml version="1.0" encoding="utf-8"?>\n${text}`;
  };

  const scale = (axis, value) => {
    const f = axis.log ? Math.log : (each) => each;
    return (f(value) - f(axis.lim[0])) / (f(axis.lim[1]) - f(axis.lim[0]));
  };
  const back = (axis, part) => axis.log
    ? Math.exp(Math.log(axis.lim[0]) + part * Math.log(axis.lim[1] / axis.lim[0]))
    : axis.lim[0] + part * (axis.lim[1] - axis.lim[0]);

  const hover = (figure, svg, told) => {
    const tip = document.createElement("p");
    tip.className = "tip";
    tip.setAttribute("aria-live", "polite");
    tip.hidden = true;
    figure.append(tip);
    const cursor = document.createElementNS(SVG, "g");
    cursor.setAttribute("class", "cursor");
    svg.append(cursor);
    const points = [...new Set(told.panels.flatMap((panel) => panel.series.flatMap((series) => series.x)))].sort((a, b) => a - b);
    let at = -1;
    const hide = () => { tip.hidden = true; cursor.replaceChildren(); };
    const mark = (name, values) => {
      const made = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
      cursor.append(made);
    };
    const say = (lines) => { tip.textContent = lines.join("  ·  "); tip.hidden = lines.length === 0; };
    const show = (x) => {
      cursor.replaceChildren();
      const lines = [];
      for (const panel of told.panels) {
        const [left, top, right, bottom] = panel.box;
        const px = left + (right - left) * scale(panel.x, x);
        mark("line", { x1: px, x2: px, y1: top, y2: bottom, stroke: "var(--ink)", "stroke-width": 0.7, "stroke-dasharray": "2 2" });
        let within = told.panels.length > 1 && panel.series.length > 1 ? `${panel.y.label}: ` : "";
        for (const series of panel.series) {
          const i = series.x.indexOf(x);
          if (i < 0 || series.y[i] === null) continue;
          mark("circle", { cx: px, cy: bottom - (bottom - top) * scale(panel.y, series.y[i]), r: 3, fill: "none", stroke: "var(--ink)" });
          lines.push(`${within}${series.name || panel.y.label} ${short(series.y[i])}`);
          within = "";
        }
      }
      const label = told.panels.map((panel) => panel.x.label).reverse().find(Boolean) || "x";
      say(lines.length ? [`${label} ${short(x)}`, ...lines] : []);
    };
    const cell = (panel, x, y) => {
      const row = told.table.rows[Math.round(y)], i = Math.round(x) + 1;
      cursor.replaceChildren();
      say(row && i > 0 && i < row.length ? [`${told.table.head[0]} ${row[0]}`, `${told.table.head[i]}: ${short(row[i])}`] : []);
    };
    const find = (event) => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const panel = told.panels.find(({ box }) => place.x >= box[0] - 4 && place.x <= box[2] + 4 && place.y >= box[1] - 4 && place.y <= box[3] + 4);
      if (!panel) return hide();
      const [left, top, right, bottom] = panel.box;
      const x = back(panel.x, (place.x - left) / (right - left)), y = back(panel.y, (bottom - place.y) / (bottom - top));
      if (told.table) return told.table.cells ? cell(panel, x, y) : undefined;
      if (!points.length) return undefined;
      const near = (each) => Math.abs(scale(panel.x, each) - scale(panel.x, x));
      at = points.reduce((best, each, i) => near(each) < near(points[best]) ? i : best, 0);
      return show(points[at]);
    };
    svg.addEventListener("pointermove", find);
    svg.addEventListener("pointerdown", find);
    svg.addEventListener("pointerleave", hide);
    if (told.table || !points.length) return;
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") return hide();
      if (step === undefined) return undefined;
      event.preventDefault();
      at = Math.min(Math.max(at + step, 0), points.length - 1);
      return show(points[at]);
    });
    svg.addEventListener("blur", hide);
  };

  for (const figure of document.querySelectorAll("figure")) {
    const svg = figure.querySelector("svg"), data = svg && svg.querySelector("metadata");
    if (!data) continue;
    const told = JSON.parse(data.textContent);
    const title = figure.querySelector("h3") ? figure.querySelector("h3").textContent.trim() : "figure";
    const name = (title.toLowerCase().match(/[a-z0-9]+/g) || ["figure"]).join("-");
    const tools = document.createElement("p");
    tools.className = "tools";
    const button = (kind, act) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = kind;
      made.setAttribute("aria-label", `Download ${title} as ${kind}`);
      made.addEventListener("click", act);
      tools.append(made);
    };
    button("SVG", () => save(`${name}.svg`, "image/svg+xml", alone(svg)));
    if (told.table || told.panels.some((panel) => panel.series.length)) {
      button("CSV", () => save(`${name}.csv`, "text/csv", csv(table(told))));
      hover(figure, svg, told);
    }
    figure.append(tools);
  }
})();
