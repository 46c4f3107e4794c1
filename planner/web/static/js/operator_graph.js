/** The graph of a step as SVG: dagre places the operators, their layers are boxes around them. */

import { layout as place, Graph } from "/static/vendor/dagre/dagre.esm.js";
import { boundWords, fillOf, svg } from "/static/js/bounds.js";
import { freshId } from "/static/js/parts.js";
import { grouped, percent, seconds, si } from "/static/js/words.js";

/** What the size of a node can show: a name, the amount of all its executions, and the amount in words. */
export const SIZES = {
  time: { words: (node) => seconds(node.total_s), of: (node) => node.total_s },
  bytes: { words: (node) => si(node.bytes * node.count, "B"), of: (node) => node.bytes * node.count },
  flops: {
    words: (node) => (node.flops ? si(node.flops * node.count, "FLOP") : "no arithmetic"),
    of: (node) => node.flops * node.count,
  },
};

const LEAST = { width: 96, height: 32 };

const LETTER = 7.3; // width of a letter, px

/**
 * Return the graph of a document of `/graph`.
 *
 * @param {object} found The document.
 * @param {{title: string, size: string, most: number, choose: (node: object) => void, width?: number}} view Its
 *   title, what sizes show, the largest amount of all graphs of the page, what runs when a node is
 *   chosen, and the width there is.
 */
export function operatorGraph(found, { title, size, most, choose, width: room = 800 }) {
  const growth = room < 560 ? { wide: 50, high: 56, gap: 12 } : { wide: 150, high: 62, gap: 22 };
  const shown = SIZES[size] ?? SIZES.time;
  const all = new Graph({ compound: true, multigraph: false });
  all.setGraph({ rankdir: "TB", nodesep: growth.gap, ranksep: 32, marginx: 10, marginy: 26 });
  all.setDefaultEdgeLabel(() => ({}));
  for (const group of found.groups) all.setNode(`group:${group.id}`, { group });
  const total = found.nodes.reduce((sum, node) => sum + shown.of(node), 0) || 1;
  for (const node of found.nodes) {
    const side = Math.sqrt(shown.of(node) / (most || 1));
    const wide = node.label.length * LETTER + 20;
    all.setNode(node.id, {
      node,
      share: shown.of(node) / total,
      width: Math.max(LEAST.width * (room < 560 ? 0.7 : 1) + growth.wide * side, wide),
      height: LEAST.height + growth.high * side,
    });
    all.setParent(node.id, `group:${node.parent}`);
  }
  for (const edge of found.edges) all.setEdge(edge.from, edge.to);
  place(all);
  return draw(all, { title, shown, choose });
}

function draw(all, { title, shown, choose }) {
  const { width, height } = all.graph();
  const head = freshId("arrow");
  const marker = svg(
    "marker",
    { id: head, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" },
    svg("path", { class: "arrow", d: "M0 0L8 4L0 8Z" }),
  );
  const names = all.nodes();
  const clusters = names
    .map((id) => all.node(id))
    .filter((at) => at.group && at.width)
    .map((at) => cluster(at, shown));
  const edges = all
    .edges()
    .map((edge) => svg("path", { class: "edge", d: path(all.edge(edge).points), "marker-end": `url(#${head})` }));
  const nodes = names
    .map((id) => all.node(id))
    .filter((at) => at.node)
    .sort((a, b) => a.y - b.y || a.x - b.x)
    .map((at, i) => box(at, i, shown, choose));
  const group = svg(
    "g",
    { role: "group", "aria-label": `Operators of ${title} in their order; arrow keys move between them` },
    nodes,
  );
  group.addEventListener("keydown", (event) => move(event, nodes));
  const wide = Math.max(...clusters.map((one) => one.right), width);
  return svg(
    "svg",
    { viewBox: `0 0 ${wide} ${height}`, width: wide, height, role: "group", "aria-label": `Graph of ${title}` },
    svg("defs", {}, marker),
    clusters.map((one) => one.rect),
    edges,
    clusters.map((one) => one.text),
    group,
  );
}

function cluster(at, shown) {
  const { group } = at;
  const [x, y] = [at.x - at.width / 2, at.y - at.height / 2 - 8];
  const label = `${group.layers > 1 ? `${grouped(group.layers)} × ` : ""}${group.label}`;
  const room = Math.max(at.width, (label.length + 8) * 6.4 + 16);
  const rect = svg("rect", { class: "cluster", x, y: y - 12, width: room, height: at.height + 20, rx: 8 });
  const text = svg("text", { class: "faint title", x: x + 8, y: y + 3, text: `${label} · ${percent(group.share)}` });
  return { rect, text, right: x + room + 4 };
}

function box(at, i, shown, choose) {
  const { node, x, y, width, height } = at;
  const bound = boundWords(node.bound);
  const words = shown.words(node);
  const plate = Math.min(
    Math.max(node.label.length * LETTER, height > 44 ? (words.length + 8) * 6.2 : 0) + 8,
    width - 4,
  );
  const made = svg(
    "g",
    {
      class: "node",
      tabindex: i === 0 ? 0 : -1,
      role: "button",
      "aria-pressed": "false",
      "aria-label": `${node.label} ${words} · ${percent(at.share)}, bound by ${bound}`,
    },
    svg("rect", { class: "box", x: x - width / 2, y: y - height / 2, width, height, rx: 6, fill: fillOf(node.bound) }),
    svg("rect", {
      class: "plate",
      x: x - plate / 2,
      y: y - (height > 44 ? 17 : 9),
      width: plate,
      height: height > 44 ? 35 : 18,
      rx: 4,
    }),
    svg("text", { x, y: y + (height > 44 ? -3 : 4), "text-anchor": "middle", text: `${node.label} ` }),
    height > 44
      ? svg("text", { class: "faint", x, y: y + 13, "text-anchor": "middle", text: `${words} · ${percent(at.share)}` })
      : null,
  );
  made.dataset.id = node.id;
  made.addEventListener("click", () => choose(node));
  made.addEventListener("focus", () => choose(node));
  return made;
}

/** Move the focus along the nodes; Home and End go to the first and the last. */
function move(event, nodes) {
  const now = nodes.indexOf(document.activeElement);
  const to = {
    ArrowDown: now + 1,
    ArrowRight: now + 1,
    ArrowUp: now - 1,
    ArrowLeft: now - 1,
    Home: 0,
    End: nodes.length - 1,
  }[event.key];
  if (now < 0 || to === undefined) return;
  event.preventDefault();
  const next = nodes[(to + nodes.length) % nodes.length];
  nodes.forEach((node) => node.setAttribute("tabindex", node === next ? 0 : -1));
  next.focus();
}

function path(points) {
  const [first, ...rest] = points;
  const last = rest.at(-1);
  let d = `M${first.x} ${first.y}`;
  for (let i = 0; i < rest.length - 1; i += 1) {
    const middle = { x: (rest[i].x + rest[i + 1].x) / 2, y: (rest[i].y + rest[i + 1].y) / 2 };
    d += `Q${rest[i].x} ${rest[i].y} ${middle.x} ${middle.y}`;
  }
  return `${d}L${last.x} ${last.y}`;
}
