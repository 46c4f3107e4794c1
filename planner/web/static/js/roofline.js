/** The roofline chart: the ceilings of an accelerator and one mark per operator, by intensity and rate. */

import { BOUNDS, fillOf, legend, markPath, svg } from "/static/js/bounds.js";
import { el, fill } from "/static/js/parts.js";
import { digits, percent, seconds, si } from "/static/js/words.js";

const PAD = { left: 58, right: 14, top: 14, bottom: 44 };

/**
 * Return one panel per analysis, with equal axes, so that panels compare.
 *
 * @param {{title: string, document: object}[]} shown Titles and documents of `/analyze`.
 * @param {number} room The width that there is for all panels; each follows its own width later.
 */
export function rooflines(shown, room) {
  const columns = Math.min(shown.length, Math.max(Math.floor((room + 20) / 400), 1));
  const extent = domain(shown.map((one) => one.document));
  const note = el("figcaption", {}, hint(shown));
  const choose = (words) => fill(note, words ?? hint(shown));
  const panels = shown.map(({ title, document }) =>
    panel(title, document, extent, choose, shown.length, (room - 20 * (columns - 1)) / columns),
  );
  const bounds = new Set(
    shown.flatMap(({ document }) => document.operators.filter((op) => op.flops > 0).map((op) => op.bound)),
  );
  return [el("div", { class: "panels" }, panels), legend(bounds), note];
}

function hint(shown) {
  const silent = [
    ...new Set(shown.flatMap(({ document }) => document.operators.filter((op) => !op.flops).map((op) => op.name))),
  ];
  const left = silent.length ? ` Not in the chart, because they only move data: ${silent.join(", ")}.` : "";
  return `Larger marks take more of the step. A mark on a line runs as fast as the hardware allows. Point at a mark, or reach it by Tab and arrow keys, for its figures.${left}`;
}

function domain(documents) {
  const x = [],
    y = [];
  for (const found of documents) {
    for (const op of found.operators)
      if (op.flops > 0 && op.seconds > 0) {
        x.push(op.flops_per_byte);
        y.push(op.flops / op.seconds);
      }
    x.push((Math.max(...ceilings(found).map(([, flops]) => flops)) / found.roofline.memory_bytes_per_s) * 4);
    y.push(Math.max(...ceilings(found).map(([, flops]) => flops)) * 1.8);
  }
  const powers = (values) => [Math.floor(Math.log10(Math.min(...values) * 0.8)), Math.log10(Math.max(...values))];
  return { x: powers(x), y: powers(y) };
}

/** Return [data types, FLOP/s] of the ceilings, the highest first; data types of equal rates share a line. */
function ceilings({ roofline, question }) {
  const byRate = new Map();
  for (const [dtype, flops] of Object.entries(roofline.peak_flops))
    byRate.set(flops, [...(byRate.get(flops) ?? []), dtype]);
  const used = roofline.peak_flops[question.weight_dtype] ?? Math.max(...Object.values(roofline.peak_flops));
  const sixteen = roofline.peak_flops.bf16 ?? roofline.peak_flops.fp16 ?? used;
  return [...byRate]
    .filter(([flops]) => flops <= Math.max(used, sixteen) && flops >= Math.min(used, sixteen))
    .sort((a, b) => b[0] - a[0])
    .map(([flops, dtypes]) => [dtypes.join(", "), flops]);
}

function panel(title, found, extent, choose, n, room) {
  const place = el("div", { class: "panel" });
  const head = el("h2", {}, title);
  const draw = (wanted) => {
    const width = Math.max(Math.floor(wanted), 300);
    fill(
      place,
      n > 1 ? head : null,
      plot(title, found, extent, choose, width, Math.min(Math.max(width * 0.58, 280), 430)),
    );
  };
  let before = room;
  draw(room);
  new ResizeObserver(
    ([
      {
        contentRect: { width },
      },
    ]) => {
      if (width && Math.abs(width - before) > 2) {
        before = width;
        draw(width);
      }
    },
  ).observe(place);
  return place;
}

function plot(title, found, extent, choose, width, height) {
  const at = {
    x: (value) =>
      PAD.left + ((Math.log10(value) - extent.x[0]) / (extent.x[1] - extent.x[0])) * (width - PAD.left - PAD.right),
    y: (value) =>
      height -
      PAD.bottom -
      ((Math.log10(value) - extent.y[0]) / (extent.y[1] - extent.y[0])) * (height - PAD.top - PAD.bottom),
  };
  const [left, right, top, bottom] = [PAD.left, width - PAD.right, PAD.top, height - PAD.bottom];
  const lines = [];
  for (let p = Math.ceil(extent.x[0]); p <= extent.x[1]; p += 1) {
    const x = at.x(10 ** p);
    lines.push(
      svg("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }),
      svg("text", { class: "faint", x, y: bottom + 16, "text-anchor": "middle", text: tick(10 ** p) }),
    );
  }
  for (let p = Math.ceil(extent.y[0]); p <= extent.y[1]; p += 1) {
    const y = at.y(10 ** p);
    lines.push(
      svg("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }),
      svg("text", { class: "faint", x: left - 6, y: y + 4, "text-anchor": "end", text: si(10 ** p, "").trim() }),
    );
  }
  lines.push(
    svg("text", {
      class: "faint",
      x: right,
      y: height - 6,
      "text-anchor": "end",
      text: "FLOP per byte of memory traffic",
    }),
  );
  lines.push(svg("text", { class: "faint", x: 4, y: 10, text: "FLOP/s" }));
  const roofs = ceilings(found);
  const memory = found.roofline.memory_bytes_per_s;
  const lowest = 10 ** extent.x[0],
    highest = 10 ** extent.x[1];
  roofs.forEach(([dtypes, flops], i) => {
    const ridge = flops / memory;
    const from = Math.max(lowest, 10 ** extent.y[0] / memory);
    const d =
      i === 0
        ? `M${at.x(from)} ${at.y(from * memory)}L${at.x(ridge)} ${at.y(flops)}H${at.x(highest)}`
        : `M${at.x(ridge)} ${at.y(flops)}H${at.x(highest)}`;
    lines.push(svg("path", { class: "roof", d }));
    lines.push(
      svg("text", { x: right, y: at.y(flops) - 5, "text-anchor": "end", text: `${dtypes} ${si(flops, "FLOP/s")}` }),
    );
  });
  const slope = Math.min(Math.max(3 * lowest, 1), roofs.at(-1)[1] / memory / 2);
  const angle =
    (Math.atan2(at.y(slope * memory) - at.y(2 * slope * memory), at.x(2 * slope) - at.x(slope)) * -180) / Math.PI;
  const [lx, ly] = [at.x(slope), at.y(slope * memory) - 7];
  lines.push(
    svg("text", { x: lx, y: ly, transform: `rotate(${angle} ${lx} ${ly})`, text: `memory ${si(memory, "B/s")}` }),
  );
  lines.push(
    svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: bottom }),
  );
  const operators = found.operators.filter((op) => op.flops > 0 && op.seconds > 0);
  const total = found.operators.reduce((sum, op) => sum + op.seconds, 0);
  const marks = operators.map((op, i) => {
    const words = `${op.name}: ${seconds(op.seconds)}, ${percent(op.seconds / total)} of device time; ${si(op.flops / op.seconds, "FLOP/s")} at ${digits(op.flops_per_byte)} FLOP/B; bound by ${BOUNDS[op.bound]?.words ?? op.bound}; ${percent(op.roofline_share)} of its roofline`;
    const r = 4 + 15 * Math.sqrt(op.seconds / total);
    return svg("path", {
      class: "mark",
      d: markPath(op.bound, at.x(op.flops_per_byte), at.y(op.flops / op.seconds), r),
      fill: fillOf(op.bound),
      tabindex: i === 0 ? 0 : -1,
      role: "img",
      "aria-label": words,
      on: {
        pointerenter: () => choose(words),
        focus: () => choose(words),
        click: (event) => event.currentTarget.focus(),
        pointerleave: () => choose(),
        blur: () => choose(),
      },
    });
  });
  const group = svg(
    "g",
    { role: "group", "aria-label": `Operators of ${title}, by time; arrow keys move between them` },
    marks,
  );
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const now = marks.indexOf(document.activeElement);
    if (!step || now < 0) return;
    event.preventDefault();
    const next = marks[(now + step + marks.length) % marks.length];
    marks[now].setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
  const names = labels(operators, total, at, width);
  return svg(
    "svg",
    {
      class: "plot",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      "aria-label": `Roofline of ${title}`,
      role: "group",
    },
    lines,
    group,
    names,
  );
}

/** Return the names of the largest operators, each at a free spot. */
function labels(operators, total, at, width) {
  const taken = [];
  const shown = [];
  for (const op of operators.slice(0, 8)) {
    const r = 4 + 15 * Math.sqrt(op.seconds / total);
    const size = op.name.length * 6.3;
    const [x, y] = [at.x(op.flops_per_byte), at.y(op.flops / op.seconds)];
    const spots = [
      [x + r + 5, y + 4],
      [x - r - 5 - size, y + 4],
      [x - size / 2, y + r + 14],
      [x - size / 2, y - r - 6],
    ];
    const spot = spots.find(
      ([left, base]) =>
        left > PAD.left &&
        left + size < width &&
        taken.every(([l, b, s]) => Math.abs(b - base) > 13 || left > l + s || left + size < l),
    );
    if (!spot) continue;
    taken.push([...spot, size]);
    shown.push(svg("text", { x: spot[0], y: spot[1], "aria-hidden": "true", text: op.name }));
  }
  return shown;
}

function tick(value) {
  return value >= 1000 ? si(value, "").trim() : String(Number(value.toPrecision(1)));
}
