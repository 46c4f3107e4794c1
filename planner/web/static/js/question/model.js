/** The model of a question: a name with suggestions, an uploaded or a pasted config.json. */

import { combobox, matches } from "/static/js/combobox.js";
import { problemNote } from "/static/js/parts.js";
import { modelNamed, networkNamed } from "/static/js/question/kind.js";
import { upload, uploadName, uploadsOf } from "/static/js/uploads.js";
import { grouped, parameters } from "/static/js/words.js";

const at = (id) => document.getElementById(id);

/** Give life to the model: a name with suggestions, or a config.json; return what reads and writes it. */
export function modelField(loading, loadingNetworks, changed) {
  const input = at("model");
  const note = async () => {
    const name = input.value.trim();
    if (name.startsWith("upload:")) {
      const file = await uploadName(name);
      if (input.value.trim() === name) at("model-note").textContent = `Your file ${file}.`;
      return;
    }
    const [models, networks] = [await loading, await loadingNetworks];
    if (input.value.trim() !== name) return; // typed on meanwhile
    const known = modelNamed(name, models);
    const network = known ? undefined : networkNamed(name, networks, models);
    if (network) {
      at("model-note").textContent = describeNetwork(network);
      return;
    }
    at("model-note").textContent = known
      ? describe(known)
      : name
        ? "Not in the catalog. Upload or paste its config.json."
        : "";
  };
  const take = (value) => {
    input.value = value;
    note();
    changed();
  };
  const box = document.createElement("span");
  input.replaceWith(box);
  box.replaceWith(
    combobox(
      input,
      async (typed) => [
        ...(await loading)
          .filter((item) => matches(`${item.name} ${item.hf_id} ${item.other_names.join(" ")}`, typed))
          .map((item) => ({ value: item.name, text: item.name, detail: describe(item) })),
        ...(await loadingNetworks)
          .filter((item) => matches(`${item.name} ${item.family} ${item.other_names.join(" ")}`, typed))
          .map((item) => ({ value: item.name, text: item.name, detail: describeNetwork(item) })),
      ],
      take,
    ),
  );
  input.addEventListener("change", note);
  uploadsOf(at("model-file"), take);
  at("paste-config").addEventListener("click", () => {
    const open = at("pasted").hidden;
    at("pasted").hidden = !open;
    at("paste-config").setAttribute("aria-expanded", String(open));
    if (open) at("config-text").focus();
  });
  at("use-config").addEventListener("click", async () => {
    const place = at("pasted");
    place.querySelector(":scope > .problem")?.remove();
    try {
      JSON.parse(at("config-text").value);
    } catch (error) {
      place.append(problemNote(new Error(`This text is not JSON: ${error.message}`)));
      return;
    }
    const done = await upload(new File([at("config-text").value], "config.json", { type: "application/json" }), place);
    if (done) take(done.upload);
  });
  return {
    read: () => (input.value.trim() ? [input.value.trim()] : []),
    write: (values) => {
      input.value = values[0] ?? "";
      note();
    },
  };
}

function describeNetwork(network) {
  const size = `${parameters(network.params)} parameters`;
  const job = `job ${network.job}${network.steps ? `, ${network.steps} steps` : ""}`;
  return [network.family, size, job].join(" · ");
}

function describe(model) {
  const size = model.params ? `${parameters(model.params)} parameters` : "";
  const active =
    model.active_params && model.active_params < 0.95 * model.params
      ? `${parameters(model.active_params)} active`
      : "";
  const context = model.max_position_tokens ? `${grouped(model.max_position_tokens)} tokens` : "";
  return [size, active, model.weight_dtype, context].filter(Boolean).join(" · ");
}
