/** The button that offers what a page shows as a JSON file. */

import { button, download } from "/static/js/parts.js";

/** Return a button that downloads documents as a file: one document as it is, several as a list. */
export function jsonButton(name, documents) {
  const text = () => JSON.stringify(documents.length > 1 ? documents : documents[0], null, 2);
  return button("JSON", () => download(name, text()), { class: "small" });
}
