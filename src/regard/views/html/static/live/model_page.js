/** The entry point of a page that carries its model. */

import { startLivePage } from "./shell.js";
import { WorkerEngine } from "./worker_engine.js";
import { decodeSevenBits, gunzip } from "../core/codec.js";
import { Data } from "../core/data.js";
import { element, visible } from "../core/dom.js";

/** @param {HTMLElement} body */
async function openPage(body) {
  const [data, { model, settings }] = await Promise.all([Data.read(document), readSettings()]);
  const engine = new WorkerEngine({ model, settings, script: text("worker"), weights: weightParts() });
  /** @type {import("./engine.js").Answer} */
  const first = { texts: [{ facts: data.facts, numbers: /** @type {Uint8Array<ArrayBuffer>} */ (data.numbers), next: null }], similarity: null, movement: null, seconds: 0 };
  startLivePage(body, { engine, first, ready: engine.ready });
}

/**
 * What regard/views/html/model_page.py wrote of the model.
 * @returns {Promise<{model: import("./engine.js").ModelFacts, settings: import("../model/worker.js").ModelSettings}>}
 */
async function readSettings() {
  const { bytes } = script("settings").dataset;
  return JSON.parse(new TextDecoder().decode(await gunzip(decodeSevenBits(text("settings")), Number(bytes))));
}

/** The weights are in elements that are short enough to be read and sent one at a time. */
function weightParts() {
  return Array.from(document.getElementsByClassName("weights"), ({ textContent }) => textContent ?? "");
}

/** @param {string} id */
function script(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`this page has lost its ${id}: write it anew`);
  return found;
}

/** @param {string} id */
function text(id) {
  return script(id).textContent ?? "";
}

const body = /** @type {HTMLElement} */ (document.getElementById("page"));
openPage(body).catch((error) => {
  body.replaceChildren(element("p", { class: "broken", role: "alert" }, `This page cannot be shown: ${visible(error instanceof Error ? error.message : String(error))}. It needs a browser of 2023 or later, and the whole file.`));
  throw error;
});
