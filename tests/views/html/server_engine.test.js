/** The engine of `regard live` in the page: its stream of events, and what it does where there is no answer. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { describe, test } from "node:test";

import { readEvents } from "../../../src/regard/views/html/static/live/event_stream.js";
import { ServerEngine, decodeBase64 } from "../../../src/regard/views/html/static/live/server_engine.js";

/** @typedef {import("../../../src/regard/views/html/static/live/engine.js").ModelFacts} ModelFacts */
/** @typedef {import("node:http").IncomingMessage} IncomingMessage */
/** @typedef {import("node:http").ServerResponse} ServerResponse */

/**
 * The events of some bytes that arrive in pieces.
 * @param {Uint8Array[]} pieces
 */
async function eventsOf(pieces) {
  const events = [];
  /** @type {ReadableStream<Uint8Array>} */
  const stream = new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(piece);
      controller.close();
    },
  });
  for await (const event of readEvents(stream)) events.push(event);
  return events;
}

const bytes = (/** @type {string} */ text) => new TextEncoder().encode(text);

describe("readEvents", () => {
  const STREAM = ': comment\r\nevent: token\ndata: {"a":\ndata: "Grüße 👩‍👩‍👧"}\n\ndata:bare\r\rid: 7\nevent: lost\n\nevent: answer\r\ndata: x: y\r\n\r\n';
  const EVENTS = [
    { name: "token", data: '{"a":\n"Grüße 👩‍👩‍👧"}' },
    { name: "message", data: "bare" },
    { name: "answer", data: "x: y" },
  ];

  test("the events are the same wherever the stream is cut into two, and when each byte comes alone", async () => {
    const all = bytes(STREAM);
    for (let cut = 0; cut <= all.length; cut++) assert.deepEqual(await eventsOf([all.slice(0, cut), all.slice(cut)]), EVENTS);
    assert.deepEqual(await eventsOf([...all].map((byte) => Uint8Array.of(byte))), EVENTS);
  });

  test("an event that was cut off is none, and a last line that a carriage return ends is read", async () => {
    for (const text of ["data: whole\n\ndata: half\n", "data: whole\r\rdata: half\r", "data: whole\r\r"]) {
      assert.deepEqual(await eventsOf([bytes(text)]), [{ name: "message", data: "whole" }]);
    }
  });

  test("an event is there before the next one arrives", async () => {
    /** @type {ReadableStreamDefaultController<Uint8Array> | undefined} */
    let controller;
    const stream = new ReadableStream({ start: (made) => void (controller = made) });
    const events = readEvents(stream);
    controller?.enqueue(bytes("data: first\n\nda"));
    assert.deepEqual((await events.next()).value, { name: "message", data: "first" });
    controller?.enqueue(bytes("ta: second\n\n"));
    assert.deepEqual((await events.next()).value, { name: "message", data: "second" });
  });

  test("a line of megabytes in small pieces takes time in proportion to its length", async () => {
    const piece = bytes("x".repeat(1000));
    const count = 8000;
    const [event] = await eventsOf([bytes("data:"), ...Array.from({ length: count }, () => piece), bytes("\n\n")]);
    assert.equal(event?.data.length, count * 1000);
  });

  test("whoever stops reading closes the stream", async () => {
    let closed = false;
    const stream = new ReadableStream({ start: (made) => made.enqueue(bytes("data: a\n\n")), cancel: () => void (closed = true) });
    for await (const _ of readEvents(stream)) break;
    assert.equal(closed, true);
  });
});

describe("decodeBase64", () => {
  test("every byte comes back", () => {
    const all = Uint8Array.from({ length: 256 }, (_, i) => i);
    assert.deepEqual(decodeBase64(Buffer.from(all).toString("base64")), all);
  });
});

/**
 * Runs something with an engine whose server answers as told.
 * @param {(request: IncomingMessage, response: ServerResponse) => void} answer
 * @param {(engine: ServerEngine, server: import("node:http").Server) => Promise<void>} use
 */
async function withServer(answer, use) {
  const server = createServer(answer);
  await new Promise((listening) => server.listen(0, "127.0.0.1", () => listening(null)));
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  try {
    await use(new ServerEngine(/** @type {ModelFacts} */ ({ name: "m" }), `http://127.0.0.1:${port}/secret/`), server);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/**
 * A server that answers every question with a text.
 * @param {string} text
 * @returns {(request: IncomingMessage, response: ServerResponse) => void}
 */
const saying = (text) => (_, response) => void response.end(text);

/**
 * @param {string} name
 * @param {unknown} data
 */
const event = (name, data) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
const QUESTION = { texts: ["hi"], edits: [] };
const GENERATE = { text: "hi", max_new_tokens: 2, temperature: 0, seed: 0, show: { attention: 0, head: 0 } };

describe("ServerEngine", () => {
  test("a question is a POST of JSON below the page's address, and the answer's numbers are bytes", async () => {
    let read = "";
    const answer = (/** @type {IncomingMessage} */ request, /** @type {ServerResponse} */ response) => {
      read = `${request.method} ${request.url} ${request.headers["content-type"]} `;
      request.on("data", (piece) => (read += piece));
      request.on("end", () => response.end(event("queue", { place: 2 }) + event("queue", { place: 0 }) + event("answer", { texts: [{ facts: {}, numbers: "AP8=", next: null }], similarity: null, movement: null, seconds: 1 })));
    };
    await withServer(answer, async (engine) => {
      /** @type {number[]} */
      const places = [];
      const { texts } = await engine.ask(QUESTION, { onQueue: (place) => places.push(place) });
      assert.equal(read, `POST /secret/ask application/json ${JSON.stringify(QUESTION)}`);
      assert.deepEqual([places, texts[0]?.numbers], [[2, 0], Uint8Array.of(0, 255)]);
    });
  });

  test("effects that grow and tokens are told as they come", async () => {
    const answer = (/** @type {IncomingMessage} */ request, /** @type {ServerResponse} */ response) =>
      void response.end(
        request.url?.endsWith("effects")
          ? event("progress", { done: 1, total: 2, sofar: { parts: [] } }) + event("progress", { done: 2, total: 2 }) + event("answer", { parts: [1] })
          : event("token", { text: " a" }) + event("token", { text: " b" }) + event("answer", { texts: [] }),
      );
    await withServer(answer, async (engine) => {
      /** @type {unknown[]} */
      const seen = [];
      const question = { texts: ["hi"], over: /** @type {const} */ ("heads"), metric: "kl", tokens: [], ablation: "zero", source: null };
      const effects = await engine.effects(question, { onProgress: (...progress) => seen.push(progress) });
      await engine.generate(GENERATE, { onToken: ({ text }) => seen.push(text) });
      assert.deepEqual([effects, seen], [{ parts: [1] }, [[1, 2, { parts: [] }], [2, 2, null], " a", " b"]]);
    });
  });

  test("an error of the server has its name and its words, before the stream and in it", async () => {
    const error = { name: "TooLong", message: "the text has 9,000 tokens, the model reads 2,048" };
    const answer = (/** @type {IncomingMessage} */ request, /** @type {ServerResponse} */ response) => {
      if (request.url?.endsWith("ask")) response.writeHead(413, { "content-type": "application/json" }).end(JSON.stringify(error));
      else response.end(event("queue", { place: 0 }) + event("error", error));
    };
    await withServer(answer, async (engine) => {
      await assert.rejects(engine.ask(QUESTION), error);
      await assert.rejects(engine.generate(GENERATE, { onToken: () => {} }), error);
    });
  });

  test("a server that is gone is said, and the next question tries again", async () => {
    let alive = false;
    const answer = (/** @type {IncomingMessage} */ request, /** @type {ServerResponse} */ response) =>
      void (alive ? response.end(event("answer", { texts: [], seconds: 1 })) : request.socket.destroy());
    await withServer(answer, async (engine) => {
      await assert.rejects(engine.ask(QUESTION), { name: "ServerGone", message: /does not answer.*Start it again/ });
      alive = true;
      assert.equal((await engine.ask(QUESTION)).seconds, 1);
    });
  });

  test("a stream that ends without an answer is a server that is gone", async () => {
    await withServer(saying(event("queue", { place: 0 })), (engine) => assert.rejects(engine.ask(QUESTION), { name: "ServerGone" }));
  });

  test("another server at the old address is told from one that is gone", async () => {
    const answer = (/** @type {IncomingMessage} */ _, /** @type {ServerResponse} */ response) => void response.writeHead(404).end("no");
    await withServer(answer, (engine) => assert.rejects(engine.ask(QUESTION), { name: "ServerGone", message: /started anew/ }));
  });

  test("an answer that is no JSON is said to be unreadable", async () => {
    await withServer(saying("event: answer\ndata: <html>\n\n"), (engine) => assert.rejects(engine.ask(QUESTION), { name: "BadAnswer" }));
  });

  test("an aborted signal closes the request, and the promise is rejected with an AbortError", async () => {
    /** @type {Promise<void>} */
    let closed = Promise.resolve();
    const abort = new AbortController();
    const answer = (/** @type {IncomingMessage} */ _, /** @type {ServerResponse} */ response) => {
      closed = new Promise((done) => response.on("close", () => done()));
      response.write(event("queue", { place: 3 }));
    };
    await withServer(answer, async (engine) => {
      await assert.rejects(engine.ask(QUESTION, { signal: abort.signal, onQueue: () => abort.abort() }), { name: "AbortError" });
      await closed;
    });
  });

  test("a question ends the text that is being written, and the writing is rejected with an AbortError", async () => {
    const answer = (/** @type {IncomingMessage} */ request, /** @type {ServerResponse} */ response) => {
      if (request.url?.endsWith("generate")) response.write(event("token", { text: " a" }));
      else response.end(event("answer", { texts: [], seconds: 1 }));
    };
    await withServer(answer, async (engine) => {
      /** @type {Promise<unknown>} */
      let asked = Promise.resolve();
      const written = engine.generate(GENERATE, { onToken: () => void (asked = engine.ask(QUESTION)) });
      await assert.rejects(written, { name: "AbortError" });
      await asked;
    });
  });

  test("a question about another text ends effects, and one about the same text does not", async () => {
    const effects = { texts: ["hi"], over: /** @type {const} */ ("heads"), metric: "kl", tokens: [], ablation: "zero", source: null };
    /** @type {ServerResponse | undefined} */
    let running;
    const answer = (/** @type {IncomingMessage} */ request, /** @type {ServerResponse} */ response) => {
      if (request.url?.endsWith("effects")) (running = response).write(event("progress", { done: 1, total: 2 }));
      else response.end(event("answer", { texts: [], seconds: 1 }));
    };
    await withServer(answer, async (engine) => {
      /** @type {() => void} */
      let begin = () => {};
      const begun = new Promise((done) => (begin = () => done(null)));
      const computed = engine.effects(effects, { onProgress: begin });
      await begun;
      await engine.ask(QUESTION);
      running?.end(event("answer", { parts: [] }));
      assert.deepEqual(await computed, { parts: [] });
      /** @type {Promise<unknown>} */
      let asked = Promise.resolve();
      const other = engine.effects(effects, { onProgress: () => void (asked = engine.ask({ texts: ["other"], edits: [] })) });
      await assert.rejects(other, { name: "AbortError", message: "Another question came first." });
      await asked;
    });
  });

  test("an error of a listener is its own, not the server's", async () => {
    const fail = () => {
      throw new RangeError("mine");
    };
    await withServer(saying(event("queue", { place: 0 })), (engine) => assert.rejects(engine.ask(QUESTION, { onQueue: fail }), { name: "RangeError", message: "mine" }));
  });
});
