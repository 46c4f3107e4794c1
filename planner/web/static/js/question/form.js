/** The form of a question to the planner: controls, presets, and its spellings as a query and as JSON. */

import { call, query } from "/static/js/api.js";
import { formHistory } from "/static/js/form_history.js";
import { announce, debounced } from "/static/js/parts.js";
import { hardwareChips } from "/static/js/question/hardware.js";
import { kindOfModel, networkNamed, showNeeded } from "/static/js/question/kind.js";
import { modelField } from "/static/js/question/model.js";
import { objectiveRows, splitObjectives } from "/static/js/question/objectives.js";
import { asQuestion, asText, flat, severalValues } from "/static/js/question/spelling.js";
import { lengthSlider, workloadField } from "/static/js/question/workload.js";
import { urlState } from "/static/js/url_state.js";

const at = (id) => document.getElementById(id);

/**
 * Give life to the form of `_question.html`.
 *
 * @param {{onChange: () => void, kept?: string[], takesNetworks?: boolean}} page What runs after a change; names of the
 *   address that are not the form's; whether the model may be a network that is not a language model.
 */
export function questionForm({ onChange, kept = [], takesNetworks = false }) {
  const form = at("question");
  const models = call("/models")
    .then((found) => found.items)
    .catch(() => []);
  const networks = !takesNetworks
    ? Promise.resolve([])
    : call("/networks")
        .then((found) => found.items)
        .catch(() => []);
  const hardware = call("/hardware")
    .then((found) => found.items)
    .catch(() => []);
  const changed = debounced(async () => {
    await followKind();
    state.save();
    onChange();
  }, 120);

  const slo = objectiveRows(presetObjectives()[0], changed);
  const chips = hardwareChips(hardware, changed);
  const showKind = kindOfModel(form, slo, presetObjectives()[0]);
  const followKind = async () =>
    takesNetworks && showKind(networkNamed(at("model").value, await networks, await models));
  const lists = { ...severalValues(form), slo, hardware: chips, model: modelField(models, networks, changed) };
  const state = urlState(form, { lists, kept, inAddress: { job: "sizes" } });
  const workloads = workloadField(changed);
  lengthSlider("input", changed);
  lengthSlider("output", changed);
  pairSlider(at("confidence-slider"), at("confidence"), changed);
  loadFields();
  presets(slo, changed);

  const follow = () => {
    workloads.follow();
    form.dispatchEvent(new Event("restored"));
    loadFields();
    followKind().then((other) => {
      if (other) onChange();
    });
  };
  const restore = formHistory(form, state, { kept, follow, onChange });
  form.addEventListener("input", changed);
  form.addEventListener("change", (event) => {
    loadFields(event.target);
    changed();
  });
  restore();

  return {
    form,
    state,
    /** Return the question as the JSON of a scenario file. */
    question: () =>
      asQuestion(form, { slo: slo.read(), hardware: chips.read().join(","), model: at("model").value.trim() }),
    /** Return the question as the text of a query. */
    asQuery: () => state.query().toString(),
    /** Return whether the question names all that a plan needs. */
    complete: () => at("model").value.trim() !== "" && chips.read().length > 0 && slo.read().length > 0,
    /** Change keys of the question, as a suggestion of a refused answer does. */
    change: (changes) => {
      applyChanges(changes, { slo, chips });
      changed();
    },
    /** Set the form from a question, as a link or a finished job holds it. */
    write: (question) => restore(query(flat(question))),
  };
}

const presetButtons = () => [...at("presets").querySelectorAll("button")];

/** Return the objectives of each preset. */
function presetObjectives() {
  return presetButtons().map((button) => splitObjectives(button.dataset.slo));
}

/** Have the buttons of presets set a workload and its objectives, which users then change. */
function presets(slo, changed) {
  const objectives = presetObjectives();
  presetButtons().forEach((button, i) =>
    button.addEventListener("click", () => {
      at("workload").value = button.dataset.workload;
      at("agents").value = button.dataset.agents;
      at("workload").dispatchEvent(new Event("change", { bubbles: true }));
      loadFields(at("agents"));
      slo.write(objectives[i]);
      announce(`Preset ${button.textContent}`);
      changed();
    }),
  );
}

function applyChanges(changes, { slo, chips }) {
  for (const [name, value] of Object.entries(changes)) {
    if (name === "slo") slo.write(value);
    else if (name === "hardware") chips.write([value]);
    else {
      const control = at("question").elements[name];
      if (!control) continue;
      control.value =
        name === "fixed"
          ? Object.entries(value)
              .map(([key, part]) => `${key}=${asText(part)}`)
              .join("\n")
          : Array.isArray(value)
            ? value.join(",")
            : value;
      control.closest("details")?.setAttribute("open", "");
      control.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }
}

function pairSlider(slider, number, changed) {
  slider.addEventListener("input", () => {
    number.value = slider.value;
    changed();
  });
  number.addEventListener("input", () => {
    slider.value = number.value;
  });
  at("question").addEventListener("restored", () => {
    slider.value = number.value;
  });
}

/** Keep one load: a rate, users or agents; the last one that was set. */
function loadFields(last) {
  const loads = [at("rate"), at("users"), at("agents")];
  if (loads.includes(last) && last.value) for (const other of loads) if (other !== last) other.value = "";
  showNeeded(at("think-field"), at("users").value !== "");
}
