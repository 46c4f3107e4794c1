/** The answer to a plan: cards, one main figure, and the rest folded; a refusal with its reasons and ways out. */

import { draw } from "/static/js/charts.js";
import { button, cards, codeBlock, el, fill, fold, table } from "/static/js/parts.js";

/**
 * Show an answer in `place`.
 *
 * @param {HTMLElement} place Where.
 * @param {object} view The document of `POST /api/v1/answers/view`.
 * @param {{files?: Node[], offer?: Node, onChange?: (changes: object, words: string) => void, note?: Node}} page
 *   Links to files of the job, a further report, what a suggestion of a refusal does, and a note above the answer.
 */
export function showAnswer(place, view, { files = [], offer, onChange, note } = {}) {
  const parts = view.feasible ? recommended(view, files, offer) : refused(view, files, onChange);
  fill(place, note, parts, evidence(view));
}

function recommended(view, files, offer) {
  const [main, ...others] = view.figures;
  return [
    el("h2", { class: "verdict" }, `${view.rents ? "Rent" : "Use"} ${view.planned_hardware}`),
    el("p", {}, view.headline),
    cards(view.cards),
    view.offer ? el("p", { class: "soft" }, view.offer) : null,
    el("div", { class: "row no-print" }, files),
    offer,
    textTable(view.objectives, "Objectives"),
    main ? figure(main) : null,
    el("p", {}, view.capacity),
    el("p", { class: "soft" }, `For: ${view.question}.`),
    view.start
      ? fold("Start it", [
          codeBlock(view.start.command, "Command that starts the plan"),
          el(
            "ul",
            {},
            view.start.notes.map((text) => el("li", {}, text)),
          ),
        ])
      : null,
    view.alternatives.length
      ? fold(`Alternatives (${view.alternatives.length})`, () => [
          el(
            "ul",
            {},
            view.alternatives.map((other) =>
              el("li", {}, other.words, el("br"), el("span", { class: "soft" }, other.difference)),
            ),
          ),
          textTable(view.plans, "Plans in comparison"),
        ])
      : null,
    view.hardware
      ? fold("Hardware to choose from", () => [textTable(view.hardware, "Hardware"), list(view.left_out)])
      : null,
    ...others.filter((f) => f.name === "curve" || f.name === "distribution").map(folded),
    ...(view.tables ?? []).map((part) => fold(part.title, () => textTable(part.table, part.title))),
    others.some((f) => ["memory", "time"].includes(f.name))
      ? fold("Memory and time", () =>
          others.filter((f) => ["memory", "time"].includes(f.name)).map((f) => figure(f, true)),
        )
      : null,
    view.regions
      ? fold("Prices by region", () => [
          ...others.filter((f) => f.name === "prices").map((f) => figure(f)),
          textTable(view.regions, "Prices by region"),
        ])
      : null,
    view.sections.length ? fold("Further sections", () => pairs(view.sections)) : null,
    fold("How sure is this?", () => [
      ...others.filter((f) => f.name === "evidence").map((f) => figure(f)),
      view.errors ? textTable(view.errors, "Published error of the prices") : null,
      view.stated?.length
        ? table({
            head: ["Statistic", "Runs compared", "True value relative to the simulated one"],
            rows: view.stated,
            numeric: [1, 2],
            label: "Stated error",
          })
        : null,
    ]),
  ];
}

function refused(view, files, onChange) {
  const no = view.refusal;
  if (!no) return [el("h2", { class: "verdict" }, "No plan, and no reason recorded")];
  const ways = no.ways.map((way) =>
    el(
      "li",
      {},
      el("span", {}, way.words, el("small", {}, ` (checked by ${way.verified_by})`)),
      onChange ? button("Change and plan again", () => onChange(way.changes, way.words), { class: "small" }) : null,
    ),
  );
  return [
    el("h2", { class: "verdict" }, el("span", { class: "bad" }, "NO"), ": nothing meets this"),
    el("p", {}, `${no.reason}.`),
    el("p", { class: "soft" }, `For: ${view.question}.`),
    el("div", { class: "row no-print" }, files),
    el("h3", {}, "What would meet it"),
    ways.length
      ? el("ul", { class: "ways" }, ways)
      : el(
          "p",
          {},
          "No change that was tried meets the objectives (more of this hardware, similar hardware, narrower weights).",
        ),
    no.closest
      ? [
          el("h3", {}, "The closest plan"),
          el("p", {}, no.closest.words),
          no.closest.objectives ? textTable(no.closest.objectives, "Objectives of the closest plan") : null,
          no.stages.map((text) => el("p", {}, `${text}.`)),
          no.closest.memory ? figure(no.closest.memory, true) : null,
        ]
      : null,
    no.reasons.length
      ? fold("Why candidates were rejected", () =>
          table({
            head: ["Reason", "Candidates"],
            rows: no.reasons.map(([reason, n]) => [reason, n.toLocaleString("en-US")]),
            numeric: [1],
            label: "Reasons",
          }),
        )
      : null,
  ];
}

function evidence(view) {
  return [
    fold("Assumptions", () => list(view.assumptions)),
    fold("Reproduce it", () => [
      codeBlock(view.reproduce.command, "Command that repeats the plan"),
      textTable(view.reproduce.table, "What the answer depends on"),
    ]),
    fold("Terminal output", () =>
      el("pre", { class: "screen", tabindex: "0", role: "region", "aria-label": "Terminal output" }, view.screen),
    ),
  ];
}

function folded(found) {
  return fold(found.title, () => figure(found));
}

/** Return a figure that is drawn once it is in the page. */
export function figure(found, titled = false) {
  const place = el("div");
  place.style.height = `${found.height}px`;
  setTimeout(
    () =>
      draw(place, found, { label: `${found.title}. ${found.caption}`, height: found.height }).catch((error) =>
        fill(place, String(error.message)),
      ),
    0,
  );
  return el(
    "figure",
    {},
    titled ? el("h3", {}, found.title) : null,
    place,
    el("figcaption", {}, titled ? found.caption : `${found.title}. ${found.caption}`),
  );
}

/** Return a table of the document: head, rows, caption, and how many columns at the left hold words. */
export function textTable(found, label) {
  const numeric = found.head.map((_, i) => i).filter((i) => i >= found.words && found.words < found.head.length);
  const mostlyWords = found.rows.some((row) => numeric.some((i) => (row[i] ?? "").length > 40));
  return table({
    head: found.head,
    rows: found.rows,
    caption: found.caption,
    numeric: mostlyWords ? [] : numeric,
    label,
  });
}

function list(texts) {
  return texts?.length
    ? el(
        "ul",
        {},
        texts.map((text) => el("li", {}, text)),
      )
    : null;
}

function pairs(lines) {
  const found = [];
  for (const [label, text] of lines) {
    if (label || !found.length) found.push([label, [text]]);
    else found.at(-1)[1].push(text);
  }
  return table({
    head: ["", ""],
    rows: found.map(([label, texts]) => [label, el("span", {}, texts.join("\n"))]),
    label: "Further sections of the answer",
  });
}
