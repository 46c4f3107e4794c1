/** A text field with a list of suggestions that typing narrows (the ARIA pattern "combobox with a listbox popup"). */

import { el, fill, freshId } from "/static/js/parts.js";

/** Return whether every word of `text` is in `searched`. */
export function matches(searched, text) {
  const place = searched.toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => place.includes(word));
}

/**
 * Make a text input a combobox and return the box that holds both.
 *
 * @param {HTMLInputElement} input The text field; any text is allowed, the list only suggests.
 * @param {(text: string) => Promise<{value: string, text: string, detail?: string}[]>} find Suggestions for a text.
 * @param {(value: string) => void} choose Called with the value of a chosen suggestion, or with a text after Enter.
 */
export function combobox(input, find, choose) {
  const list = el("ul", {
    id: freshId("list"),
    role: "listbox",
    "aria-label": "Suggestions",
    class: "options",
    hidden: true,
  });
  const box = el("div", { class: "combobox" }, input, list);
  for (const [name, value] of Object.entries({
    role: "combobox",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": list.id,
    autocomplete: "off",
    spellcheck: "false",
  })) {
    input.setAttribute(name, value);
  }
  let found = [];
  let active = -1;
  let asked = 0;

  const close = () => {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const mark = (i) => {
    active = i;
    [...list.children].forEach((node, n) => node.setAttribute("aria-selected", String(n === i)));
    const node = list.children[i];
    if (!node) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", node.id);
    node.scrollIntoView({ block: "nearest" });
  };
  const take = (value) => {
    close();
    choose(value);
  };
  const open = async () => {
    const own = ++asked;
    const items = await find(input.value.trim()).catch(() => []);
    if (own !== asked || document.activeElement !== input) return;
    found = items.slice(0, 60);
    fill(
      list,
      found.map((item) =>
        el(
          "li",
          {
            id: freshId("option"),
            role: "option",
            "aria-selected": "false",
            on: { mousedown: (event) => event.preventDefault(), click: () => take(item.value) },
          },
          el("span", {}, item.text),
          item.detail ? el("small", {}, item.detail) : null,
        ),
      ),
    );
    list.hidden = found.length === 0;
    active = -1;
    input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-expanded", String(!list.hidden));
  };

  input.addEventListener("input", open);
  input.addEventListener("click", open);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", async (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) await open();
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (found.length) mark((active + step + found.length + (active < 0 && step < 0 ? 1 : 0)) % found.length);
    } else if (event.key === "Enter" && (active >= 0 || input.value.trim())) {
      event.preventDefault();
      take(active >= 0 ? found[active].value : input.value.trim());
    } else if (event.key === "Escape" && !list.hidden) {
      event.preventDefault();
      close();
    }
  });
  return box;
}
