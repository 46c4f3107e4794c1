/** The estimate while one types: does it fit, what binds, a lone request, and a first guess of GPUs and dollars. */

import { call } from "/static/js/api.js";
import { cards, el, fill, partsBar, problemNote } from "/static/js/parts.js";
import { digits, dollars, gigabytes, percent, seconds } from "/static/js/words.js";

/** Return a function that shows the estimate of a question in `place`; a newer question replaces an older one. */
export function liveStrip(place) {
  let running = null;
  const title = el("h2", {}, "Estimate");
  const show = (...parts) => fill(place, title, ...parts);
  show(el("p", { class: "soft" }, "Name a model and hardware to see whether it fits."));
  return async (queryText, complete) => {
    running?.abort();
    if (!complete) return show(el("p", { class: "soft" }, "Name a model and hardware to see whether it fits."));
    running = new AbortController();
    place.setAttribute("aria-busy", "true");
    try {
      show(estimate(await call(`/guess?${queryText}`, { signal: running.signal })));
    } catch (error) {
      if (error.name !== "AbortError") show(problemNote(error));
    }
    place.removeAttribute("aria-busy");
  };
}

function estimate(guess) {
  const fits = guess.fits ? el("span", { class: "good" }, "It fits") : el("span", { class: "bad" }, "It does not fit");
  const span = spread(guess);
  const rows = [
    ["Memory", fits, guess.binds ? `bound by ${guess.binds}` : ""],
    ["Lone request, first token", value(guess.lone_ttft_s, seconds), ""],
    ["Lone request, per token", value(guess.lone_tpot_s, seconds), ""],
    ["First guess", value(guess.gpus, (n) => `${digits(n)} GPU${n === 1 ? "" : "s"}`), ""],
    ["Cost", value(guess.usd_per_hour, (usd) => `${dollars(usd)}/h`), span],
  ];
  return [cards(rows), guess.memory ? memoryBar(guess.memory) : null, guess.notes?.length ? el("ul", { class: "soft" }, guess.notes.map((text) => el("li", {}, text))) : null];
}

function value(found, words) {
  return found === null || found === undefined ? "unknown" : words(found);
}

function spread(guess) {
  const error = guess.uncertainty;
  if (error === null || error === undefined) return "";
  if (typeof error === "number") return `within ±${percent(error)}`;
  if (typeof error === "string") return error;
  const [low, high] = error.usd_per_hour ?? [];
  return low !== undefined && low !== null ? `${dollars(low)} to ${dollars(high)} per hour` : error.words ?? "";
}

/** Return a bar of the memory of one accelerator; the document is that of an answer's memory. */
export function memoryBar(memory) {
  const parts = [
    ["weights", memory.weights_bytes], ["activations", memory.activation_bytes], ["runtime", memory.non_torch_bytes], ["KV cache", memory.kv_bytes],
  ].filter(([, size]) => size > 0);
  const free = memory.device_bytes - parts.reduce((sum, [, size]) => sum + size, 0);
  const shown = parts.map(([name, size], i) => ({ name, size, words: gigabytes(size), pattern: i }));
  if (free > 0) shown.push({ name: "free", size: free, words: gigabytes(free), pattern: 5 });
  return partsBar(shown, memory.device_bytes, `Memory of one accelerator, ${gigabytes(memory.device_bytes)}`);
}
