/** An error whose message is for the reader: the text or the question cannot be answered, and why. */

/** Half of a character of two UTF-16 units, without the other half. */
export const LONE_SURROGATE = /\p{Surrogate}/gu;

/** The longest text that a message quotes, in characters. */
const MAX_QUOTED = 60;

export class InputError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = "InputError";
  }
}

/**
 * A text in quotes for a message; of a long text its beginning.
 * @param {string} text
 */
export function quoted(text) {
  const characters = Array.from(text.replace(LONE_SURROGATE, "\ufffd"));
  const beginning = JSON.stringify(characters.slice(0, MAX_QUOTED).join(""));
  return characters.length > MAX_QUOTED ? `${beginning}... (${characters.length} characters)` : beginning;
}
