/** Conversations as a workload: its keys in braces (docs/workloads.md), and the fields that set them. */

/** Return whether the text of a workload holds its keys, and is no name. */
export function isWrittenOut(text) {
  return text.trimStart().startsWith("{");
}

/**
 * Connect the fields of conversations, `[data-part]` in `place`, with the text of their workload.
 *
 * @param {HTMLElement} place Where the fields are.
 * @returns {{text: () => string, write: (text: string) => boolean}} What returns the text of the fields, and what sets
 *   them from a text; it returns false if the text says more than the fields can.
 */
export function conversationFields(place) {
  const part = (name) => place.querySelector(`[data-part="${name}"]`);
  const number = (name) => Number(part(name).value) || Number(part(name).min);
  const length = (mean) =>
    number("spread") ? { lognormal: { mean: number(mean), cv: number("spread") } } : number(mean);

  function text() {
    const [low, high] = [number("least"), number("most")];
    return JSON.stringify({
      arrivals: { poisson: {} },
      input_tokens: length("input"),
      output_tokens: length("output"),
      turns: { per_session: { uniform: { low, high: Math.max(low, high) } }, think_time_s: number("think") },
    });
  }

  function write(given) {
    let found;
    try {
      found = JSON.parse(given);
      const { low, high } = found.turns.per_session.uniform;
      const { lognormal } = found.input_tokens;
      const values = {
        least: low,
        most: high,
        think: found.turns.think_time_s,
        input: lognormal?.mean ?? found.input_tokens,
        output: found.output_tokens.lognormal?.mean ?? found.output_tokens,
        spread: lognormal?.cv ?? 0,
      };
      for (const [name, value] of Object.entries(values)) part(name).value = value;
    } catch {
      return false; // other keys than those of the fields, or YAML
    }
    return text() === JSON.stringify(found);
  }

  return { text, write };
}
