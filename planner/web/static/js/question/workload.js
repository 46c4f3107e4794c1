/** The workload of a question: a name of the catalog, a file of the user, conversations, or constant lengths. */

import { call } from "/static/js/api.js";
import { fill, problemNote } from "/static/js/parts.js";
import { conversationFields, isWrittenOut } from "/static/js/question/conversations.js";
import { showNeeded } from "/static/js/question/kind.js";
import { isUpload, uploadName, uploadsOf } from "/static/js/uploads.js";
import { grouped } from "/static/js/words.js";

const at = (id) => document.getElementById(id);

/** Give life to the workload; return what follows a value that was set from outside. */
export function workloadField(changed) {
  const control = at("workload");
  const fields = conversationFields(at("conversations"));
  const own = at("conversations-option");
  own.value = fields.text();
  call("/workloads")
    .then(({ items }) => {
      const known = new Set([...control.options].map((option) => option.value));
      own.before(...items.filter((item) => !known.has(item.name)).map((item) => new Option(item.name, item.name)));
    })
    .catch(() => {}); // the form works without the list

  const follow = () => {
    showConversations(control, own, fields);
    describe(control.value);
    for (const option of control.options) {
      if (isUpload(option.value) && option.text === option.value) {
        uploadName(option.value).then((name) => (option.text = name)); // a link names an upload by its content
      }
    }
  };
  at("conversations").addEventListener("input", () => {
    own.value = fields.text();
    describe(own.value);
  });
  control.addEventListener("change", follow);
  uploadsOf(at("trace-file"), async (name, done) => {
    if (!(await describe(name))) return; // its reader refuses it; the workload stays
    control.append(new Option(done.name, name));
    control.value = name;
    follow();
    changed();
  });
  return { follow };
}

/** Show the fields of conversations if the workload is written out; a text that says more has none. */
function showConversations(control, own, fields) {
  const chosen = control.value;
  if (isWrittenOut(chosen) && chosen !== own.value && fields.write(chosen)) {
    [...control.options].find((option) => option !== own && option.value === chosen)?.remove();
    own.value = chosen;
    control.value = chosen;
  }
  for (const option of control.options) {
    if (option !== own && isWrittenOut(option.value)) option.text = "keys of a workload file";
  }
  at("conversations").hidden = control.selectedOptions[0] !== own;
}

/** Show the lengths of a workload, or why it is refused; return whether it is a workload. */
async function describe(text) {
  const note = at("workload-note");
  note.dataset.of = text;
  try {
    const found = await call(`/workloads/${encodeURIComponent(text)}`);
    if (note.dataset.of !== text) return true;
    const [inputs, outputs] = [found.input_tokens_mean, found.output_tokens_mean].map((mean) => grouped(mean));
    showAgents(found.takes_agents);
    note.textContent = `Mean ${inputs} tokens in, ${outputs} out. ${isWrittenOut(text) ? "" : found.source}`;
    fill(at("workload-problem"));
    return true;
  } catch (error) {
    if (note.dataset.of === text) {
      note.textContent = "";
      fill(at("workload-problem"), problemNote(error));
    }
    return false;
  }
}

/** Show the number of agents for a workload that can have them, or to whom the form has one: it can be removed. */
function showAgents(possible) {
  showNeeded(at("agents-field"), possible || at("agents").value !== "");
}

/** Keep a logarithmic slider and the number of tokens in step; an empty number stands for the workload's lengths. */
export function lengthSlider(kind, changed) {
  const slider = at(`${kind}-slider`);
  const number = at(`${kind}_tokens`);
  const follow = () => {
    if (number.value) slider.value = Math.log2(Number(number.value));
  };
  slider.addEventListener("input", () => {
    const tokens = 2 ** Number(slider.value);
    const step = 2 ** Math.max(0, Math.floor(Math.log2(tokens)) - 4);
    number.value = String(Math.round(tokens / step) * step);
    changed();
  });
  number.addEventListener("input", follow);
  at("question").addEventListener("restored", follow);
}
