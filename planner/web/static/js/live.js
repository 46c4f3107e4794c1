/** The estimate while one types: does it fit, what binds, a single request, and a first guess of GPUs and dollars. */

import { call } from "/static/js/api.js";
import { cards, el, fill, memoryBar, problemNote, sentence } from "/static/js/parts.js";
import { counted, digits, dollars, rate, seconds } from "/static/js/words.js";

/** Return a function that shows the estimate of a question in `place`; a newer question replaces an older one. */
export function liveStrip(place) {
  let running = null;
  const title = el("h2", {}, "Estimate");
  const show = (...parts) => fill(place, title, ...parts);
  show(el("p", { class: "soft" }, "Name a model and hardware to see whether it fits."));
  return async (queryText, complete) => {
    running?.abort();
    place.removeAttribute("aria-busy");
    if (!complete) return show(el("p", { class: "soft" }, "Name a model and hardware to see whether it fits."));
    if (new URLSearchParams(queryText).get("agents")) {
      return show(el("p", { class: "soft" }, "Agents have no estimate: the plan simulates their sessions."));
    }
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
  const range = guess.uncertainty ?? {};
  const precision = guess.weight_dtype ? `${guess.weight_dtype} weights` : "";
  const rows = [
    ["Memory", fits, [guess.hardware, precision].filter(Boolean).join(", ")],
    [
      "First guess",
      value(guess.gpus, (n) => counted(n, "accelerator")),
      between(range.gpus, digits) || (guess.requests_per_s ? served(guess) : ""),
    ],
    ["Cost", value(guess.usd_per_hour, (usd) => `${dollars(usd)}/h`), between(range.usd_per_hour, dollars)],
    alone(guess),
    [
      "Limited by",
      guess.binds ?? "nothing",
      guess.fits && !guess.enough ? "more hardware is needed than is named" : "",
    ],
  ];
  const notes = [range.words, ...guess.notes].filter(Boolean).map(sentence);
  return [
    cards(rows),
    guess.memory ? ofAnswer(guess.memory) : null,
    el(
      "ul",
      { class: "soft notes" },
      notes.map((text) => el("li", {}, text)),
    ),
  ];
}

/** Return the rate that a guess serves, in requests, or in jobs of a network. */
function served(guess) {
  const of = guess.single_job_s === null ? rate(guess.requests_per_s) : `${digits(guess.requests_per_s)} jobs/s`;
  return guess.single_job_s === null ? `serves about ${of}` : `serves at most ${of}`;
}

/** Return the card of a request, or of a job of a network, that is served alone. */
function alone(guess) {
  if (guess.single_job_s !== null) return ["One job alone", seconds(guess.single_job_s), "at the confidence"];
  const then = guess.single_tpot_s === null ? "" : `to the first token, then ${seconds(guess.single_tpot_s)} per token`;
  return ["One request alone", value(guess.single_ttft_s, seconds), then];
}

/** Return a range in words; empty if both ends are equal or unknown. */
function between(ends, words) {
  if (!ends || ends.some((end) => end === null || end === undefined) || words(ends[0]) === words(ends[1])) return "";
  const [low, high] = [...ends].sort((a, b) => a - b);
  return `${words(low)} to ${words(high)}`;
}

function value(found, words) {
  return found === null || found === undefined ? "unknown" : words(found);
}

/** Return a bar of the memory of one accelerator; the document is that of an answer's memory. */
function ofAnswer(memory) {
  const { weights_bytes: weights, activation_bytes: activations, non_torch_bytes: runtime, kv_bytes: kv } = memory;
  const sizes = { weights, activations, runtime, "KV cache": kv };
  return memoryBar(Object.entries(sizes), memory.device_bytes);
}
