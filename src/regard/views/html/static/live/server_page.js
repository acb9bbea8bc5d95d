/** The entry point of the page of `regard live`: asks what its model is, and opens the live page. */

import { ServerEngine, readModel } from "./server_engine.js";
import { startLivePage } from "./shell.js";
import { element, visible } from "../core/dom.js";
import { nextTokens } from "../next/next.js";
import { writing } from "../next/writing.js";
import { VIEWS } from "../page.js";

/** @param {HTMLElement} body */
async function openPage(body) {
  const address = new URL("./", location.href);
  const model = await readModel(address);
  const own = model.generates ? [nextTokens, writing] : [];
  const engine = new ServerEngine(model, address);
  const waiting = element("p", { role: "status" }, "The model reads the first text …");
  body.replaceChildren(waiting);
  const first = await engine.ask({ texts: model.texts, edits: [] });
  startLivePage(body, { engine, first, views: [...VIEWS.slice(0, 1), ...own, ...VIEWS.slice(1)] });
}

const body = /** @type {HTMLElement} */ (document.getElementById("page"));
/** Opens the page, or says why it cannot be opened, with a button to try again. */
function open() {
  openPage(body).catch((error) => {
    const message = error instanceof Error ? error.message : String(error);
    body.replaceChildren(element("p", { class: "broken", role: "alert" }, visible(message)), element("button", { type: "button", onclick: open }, "Try again"));
  });
}
open();
