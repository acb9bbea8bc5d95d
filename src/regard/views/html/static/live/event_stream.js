/**
 * Server-sent events of an answer to POST, which the browser's own EventSource cannot send.
 * @see https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
 */

/**
 * @typedef {object} ServerEvent
 * @property {string} name "message" where the server gave none
 * @property {string} data
 */

/** What ends a line. A carriage return at the end of a chunk waits for the next one: a line feed may follow it. */
const LINE_END = /\r\n|\n|\r(?!$)/;

/**
 * The events of a stream, each as soon as the empty line after it is there. One that was cut off is none.
 * @param {ReadableStream<Uint8Array>} stream
 * @returns {AsyncGenerator<ServerEvent, void, void>}
 */
export async function* readEvents(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* parser.push(decoder.decode(value, { stream: !done }));
      if (done) break;
    }
    yield* parser.end();
  } finally {
    reader.cancel().catch(() => {}); // whoever stops reading wants no more of it; a stream that failed is closed already
  }
}

/** Makes events of text that comes in pieces of any size. */
class EventParser {
  /** @type {string[]} pieces of a line that has not ended; joined once, since an answer is a line of megabytes */
  #line = [];
  #name = "";
  /** @type {string[]} */
  #data = [];

  /**
   * @param {string} text
   * @returns {Generator<ServerEvent, void, void>}
   */
  *push(text) {
    const held = this.#line.at(-1);
    if (held?.endsWith("\r")) text = this.#line.pop() + text;
    const lines = text.split(LINE_END);
    const rest = lines.pop() ?? "";
    for (const line of lines) {
      const event = this.#take([...this.#line, line].join(""));
      this.#line = [];
      if (event) yield event;
    }
    if (rest) this.#line.push(rest);
  }

  /** What a carriage return at the very end still ends. */
  *end() {
    if (this.#line.at(-1)?.endsWith("\r")) yield* this.push("\n");
  }

  /**
   * @param {string} line
   * @returns {ServerEvent | null} the event that ends with this line
   */
  #take(line) {
    if (line === "") {
      const event = this.#data.length > 0 ? { name: this.#name || "message", data: this.#data.join("\n") } : null;
      this.#name = "";
      this.#data = [];
      return event;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (field === "event") this.#name = value;
    else if (field === "data") this.#data.push(value);
    return null;
  }
}
