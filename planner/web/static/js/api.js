/** Calls of the API. Every error is a Problem with the rule, the value and the nearest valid choice. */

export class Problem extends Error {
  constructor(document) {
    super(document.detail || document.title || "The server did not answer");
    Object.assign(this, document);
  }
}

/** Return the JSON of a call; `path` is below /api/v1. */
export async function call(path, { method = "GET", body, signal } = {}) {
  const request = { method, signal, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    request.body = JSON.stringify(body);
    request.headers["Content-Type"] = "application/json";
  }
  const response = await fetch(`/api/v1${path}`, request);
  const text = await response.text();
  let found = null;
  if (text) {
    try {
      found = JSON.parse(text);
    } catch {
      found = { title: `The server answered ${response.status} with an unreadable body` };
    }
  }
  if (!response.ok) throw new Problem(found ?? { title: `The server answered ${response.status}` });
  return found;
}

/** Return the text of a query: empty values are left out, lists are repeated. */
export function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== "" && item !== null && item !== undefined) found.append(name, item);
    }
  }
  return found.toString();
}
