/** The kind of model of a question: a language model, or another network, which has jobs in place of tokens. */

import { splitObjectives } from "/static/js/question/objectives.js";

const at = (id) => document.getElementById(id);

/** Return a name without what people spell differently: case, separators and publisher. */
function plain(name) {
  return name
    .toLowerCase()
    .replace(/^.*\//, "")
    .replace(/[^a-z0-9]/g, "");
}

/** Return all names of a model or network, in lower case. */
function names(item) {
  return [item.name, item.hf_id ?? "", ...item.other_names].map((name) => name.toLowerCase());
}

/** Return the language model that a text names; undefined if it names none. */
export function modelNamed(text, models) {
  const wanted = text.trim().toLowerCase();
  return wanted ? models.find((item) => names(item).includes(wanted)) : undefined;
}

/** Return the network that a text names; undefined if it names none, or also a language model. */
export function networkNamed(text, networks, models) {
  const wanted = text.trim().toLowerCase();
  if (!wanted || modelNamed(wanted, models)) return undefined;
  const exact = networks.find((item) => names(item).includes(wanted));
  return exact ?? networks.find((item) => names(item).map(plain).includes(plain(wanted)));
}

/**
 * Show the controls of one kind of model. Those of the other kind are hidden and disabled, so they take no part.
 *
 * @param {HTMLFormElement} form The form.
 * @param {{read: () => string[], write: (values: string[]) => void, only: (metric: string) => void}} slo The rows of
 *   objectives.
 * @param {string[]} usual Objectives of a language model to begin with.
 * @returns {(network: object | undefined) => boolean} What shows the controls of a network, or those of language
 *   models; it returns whether the kind or the network has changed.
 */
export function kindOfModel(form, slo, usual) {
  let shown = null; // the network of the form; undefined for a language model, null before the first call
  return (network) => {
    if (shown !== null && network?.name === shown?.name) return false;
    const [before, given] = [shown, slo.read()];
    shown = network;
    for (const part of form.querySelectorAll("[data-only]")) showPart(part, network ? "network" : "language");
    if (form.elements.objective.selectedOptions[0]?.disabled) form.elements.objective.value = "cost";
    slo.only(network ? "e2e" : "");
    const untouched = Boolean(before) && splitObjectives(before.slo).join() === given.join();
    if (network && (untouched || !given.length || !given.every((text) => text.startsWith("e2e.")))) {
      slo.write(splitObjectives(network.slo));
    } else if (!network && untouched) {
      slo.write(usual);
    }
    if (network) describeJob(network);
    return network !== undefined || Boolean(before);
  };
}

/** Show a part of the form where the question needs it, unless it is of the other kind of model. */
export function showNeeded(part, needed) {
  part.dataset.needed = needed ? "yes" : "no";
  part.hidden = !needed || part.querySelector("input").disabled;
}

function showPart(part, kind) {
  const off = part.dataset.only !== "" && part.dataset.only !== kind;
  part.hidden = off || part.dataset.needed === "no";
  if (part.tagName === "OPTION") part.disabled = off;
  for (const control of part.querySelectorAll("input, select, textarea, button")) control.disabled = off;
}

function describeJob(network) {
  at("job-sizes").placeholder = network.job;
  at("steps").placeholder = network.steps ?? "";
  at("steps").disabled = network.steps === null;
  at("steps-field").hidden = network.steps === null;
  const sizes = network.sizes.map((size) => (size.meaning ? `${size.name}: ${size.meaning}` : size.name));
  const one = `One job yields ${/^[aeiou]/.test(network.unit) ? "an" : "a"} ${network.unit}.`;
  const extents = network.sizes.some((size) => size.name === "height");
  const how = extents ? `Write ${network.job}, or sizes as NAME=VALUE with commas.` : "Write NAME=VALUE with commas.";
  at("job-note").textContent = `${one} ${how} Sizes: ${sizes.join("; ")}.`;
}
