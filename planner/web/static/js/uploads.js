/** Files of the user: sent to the server, which names each by its content, `upload:SHA256`. */

import { Problem, call } from "/static/js/api.js";
import { button, el, problemNote } from "/static/js/parts.js";

/** Upload the file that a control takes, and pass its name on. */
export function uploadsOf(input, take) {
  input.addEventListener("change", async () => {
    if (!input.files.length) return;
    const done = await upload(input.files[0], input.closest("fieldset"));
    input.value = "";
    if (done) take(done.upload, done);
  });
}

/** Upload a file; a refusal is shown at the end of `place`. */
export async function upload(file, place) {
  place.querySelector(":scope > .problem")?.remove();
  const body = new FormData();
  body.append("file", file);
  try {
    const response = await fetch("/api/v1/uploads", { method: "POST", body });
    const found = await response.json();
    if (response.ok) return found;
    place.append(problemNote(new Problem(found)));
  } catch (error) {
    place.append(problemNote(error));
  }
  return null;
}

/** Return the name that an uploaded file had. */
export async function uploadName(reference) {
  try {
    return (await call(`/uploads/${encodeURIComponent(reference)}`)).name;
  } catch {
    return `${reference.slice(0, 15)}… (not on this server)`;
  }
}

/** Return whether the name of a model is that of an upload. */
export function isUpload(name) {
  return name.startsWith("upload:");
}

/**
 * Make a fold in which one uploads or pastes the config.json of a model.
 *
 * @param {(name: string) => void} take Called with the name of the upload.
 */
export function ownModel(take) {
  const input = el("input", { type: "file", accept: ".json,application/json", class: "unseen" });
  const text = el("textarea", { rows: "6", spellcheck: "false" });
  const place = el(
    "fieldset",
    { class: "own-model" },
    el("div", { class: "row" }, el("label", { class: "button small-file" }, "Upload config.json", input)),
    el("div", { class: "field" }, el("label", {}, "Or paste its content", text)),
    button(
      "Use this configuration",
      async () => {
        const done = await upload(new File([text.value], "config.json", { type: "application/json" }), place);
        if (done) taken(done.upload);
      },
      { class: "small" },
    ),
  );
  const fold = el("details", { class: "fold own-model-fold" }, el("summary", {}, "A model of your own"), place);
  const taken = (name) => {
    fold.open = false;
    take(name);
  };
  place.addEventListener("input", (event) => event.stopPropagation()); // what one pastes is no control of the page
  uploadsOf(input, taken);
  return fold;
}
