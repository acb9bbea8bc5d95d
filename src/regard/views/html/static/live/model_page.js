/** The entry point of a page that carries its model. */

import { startLivePage } from "./shell.js";
import { WorkerEngine } from "./worker_engine.js";
import { Data, readEncoded } from "../core/data.js";
import { element, visible } from "../core/dom.js";

/** @param {HTMLElement} body */
async function openPage(body) {
  const [data, { model, settings }] = await Promise.all([Data.read(document), readSettings()]);
  const engine = new WorkerEngine({ model, settings, script: workerScript(), weights: weightParts() });
  /** @type {import("./engine.js").Answer} */
  const first = { texts: [{ facts: data.facts, numbers: /** @type {Uint8Array<ArrayBuffer>} */ (data.numbers), next: null }], similarity: null, movement: null, seconds: 0 };
  startLivePage(body, { engine, first, ready: engine.ready });
}

/**
 * What regard/views/html/model_page.py wrote of the model.
 * @returns {Promise<{model: import("./engine.js").ModelFacts, settings: import("../model/worker.js").ModelSettings}>}
 */
async function readSettings() {
  return JSON.parse(new TextDecoder().decode(await readEncoded(document, "settings")));
}

/** The weights are in elements that are short enough to be read and sent one at a time. */
function weightParts() {
  return Array.from(document.getElementsByClassName("weights"), ({ textContent }) => textContent ?? "");
}

function workerScript() {
  const script = document.getElementById("worker");
  if (!script) throw new Error("this page has lost its worker: write it anew");
  return script.textContent ?? "";
}

const body = /** @type {HTMLElement} */ (document.getElementById("page"));
openPage(body).catch((error) => {
  body.replaceChildren(element("p", { class: "broken", role: "alert" }, `This page cannot be shown: ${visible(error instanceof Error ? error.message : String(error))}. It needs a browser of 2023 or later, and the whole file.`));
  throw error;
});
