/** Sends a long text to a worker in parts: to copy 23 million characters at once would stop the page for 50 ms. */

/** Characters of a part: to copy them takes about 5 ms. */
const PART = 2 ** 21;

/**
 * Sends the parts in order, each in a task of its own. The receiver joins them.
 * @param {string} text
 * @param {(part: string) => void} send
 */
export async function sendInParts(text, send) {
  for (let at = 0; at < text.length; at += PART) {
    send(text.slice(at, at + PART));
    await new Promise((done) => setTimeout(done));
  }
}
