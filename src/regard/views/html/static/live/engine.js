/**
 * What a live page asks its model, and the answers. Two engines keep this contract: `live/worker_engine.js`, whose model
 * is in the page, and `live/server_engine.js`, whose model runs in `regard live`. Over HTTP the same objects are JSON.
 */

/** @typedef {import("../core/data.js").Facts} Facts */
/** @typedef {import("../core/data.js").EffectFacts} EffectFacts */
/** @typedef {import("../core/attention.js").Edits} Edits */

/**
 * The model of a live page.
 * @typedef {object} ModelFacts
 * @property {string} name
 * @property {"encoder" | "decoder" | "encoder-decoder" | "module"} kind
 * @property {string} description a line: layers, heads, precision
 * @property {number} max_tokens of a text
 * @property {string[]} texts that the page opens with, one or two
 * @property {string[]} notes such as the distance of 8-bit weights from the full ones
 * @property {boolean} has_vector whether a text has one vector, so that two have a similarity
 * @property {boolean} generates
 * @property {("heads" | "layers" | "tokens" | "edges")[]} effects what effects can be computed over; empty: none
 * @property {string[]} metrics of effects: "cosine", "similarity", "log_prob", "logit_difference", "kl"
 * @property {string[]} ablations "zero", "mean", "resample"
 * @property {string[]} edits which of a row's edits go through the model: "mask", "removedKeys", "temperature", "scale", "scores", "off"
 */

/**
 * A change of one head that goes through all that follows it in the model.
 * @typedef {object} ModelEdit
 * @property {number} attention its place in the facts
 * @property {number} head its place among the attention's
 * @property {number | null} query of one row; null: all rows
 * @property {boolean} off whether the head gives zeros
 * @property {Edits} edits of the row, as the view What if has them
 */

/**
 * @typedef {object} Question
 * @property {string[]} texts one, or two that are compared
 * @property {ModelEdit[]} edits of the model while it reads the first text
 */

/**
 * @typedef {object} Answer
 * @property {TextAnswer[]} texts in the order of the question
 * @property {number | null} similarity cosine of the two texts' vectors, without edits
 * @property {Movement | null} movement null without edits
 * @property {number} seconds that the model and its facts took
 */

/**
 * A text as the model read it, without edits. The facts of the first of two texts have the `context` of both.
 * @typedef {object} TextAnswer
 * @property {Facts} facts
 * @property {Uint8Array<ArrayBuffer>} numbers over HTTP: base64
 * @property {NextToken[] | null} next the likeliest next tokens of a decoder, the likeliest first
 */

/**
 * @typedef {object} NextToken
 * @property {number} id
 * @property {string} token as it is shown
 * @property {string | null} text what it adds to a text; null for a special token, or a part of a character
 * @property {number} logit
 * @property {number} probability
 */

/**
 * What the edits of a question changed.
 * @typedef {object} Movement
 * @property {number | null} cosine of the text's vector with itself before
 * @property {number | null} distance between the two, Euclidean
 * @property {number | null} similarity with the second text, after the edits
 * @property {HeadChange[]} heads of every head of the same and later layers, in the model's order
 * @property {{before: NextToken[], after: NextToken[]} | null} next the same tokens before and after, and those that came in
 * @property {string[]} notes edits that this model cannot follow, by name and with the reason
 */

/**
 * The largest change of one of a head's weights.
 * @typedef {object} HeadChange
 * @property {number} attention
 * @property {number} head
 * @property {number} query where the change is largest
 * @property {number} key
 * @property {number} before the weight
 * @property {number} after
 */

/**
 * @typedef {object} EffectQuestion
 * @property {string[]} texts
 * @property {"heads" | "layers" | "tokens" | "edges"} over
 * @property {string} metric one of the model's
 * @property {string[]} tokens of the metric: one for log_prob, two for logit_difference, else none
 * @property {string} ablation one of the model's
 * @property {string | null} source another text, whose head outputs take the place of this one's ("resample"), or their mean
 */

/**
 * @typedef {object} GenerateQuestion
 * @property {string} text
 * @property {number} max_new_tokens
 * @property {number} temperature 0: the likeliest token each time
 * @property {number} seed
 * @property {{attention: number, head: number}} show the head whose map grows with each token
 */

/**
 * A token that was written.
 * @typedef {object} WrittenToken
 * @property {NextToken} token
 * @property {NextToken[]} candidates the likeliest at this place
 * @property {string} text what the reader sees of it
 * @property {string} query the token that was read when this one was written: its row is the newest of the map
 * @property {number[]} weights of the shown head in that row, over all tokens so far
 */

/**
 * While an engine works. An aborted signal ends the work, and the promise is rejected with an AbortError.
 * @typedef {object} Waiting
 * @property {AbortSignal} [signal]
 * @property {(place: number) => void} [onQueue] how many questions come first; 0: it is computed now
 * @property {(done: number, total: number, sofar: EffectFacts | null) => void} [onProgress]
 */

/**
 * @typedef {object} Engine
 * @property {ModelFacts} model
 * @property {(question: Question, waiting?: Waiting) => Promise<Answer>} ask
 * @property {(question: EffectQuestion, waiting?: Waiting) => Promise<EffectFacts>} effects
 * @property {(question: GenerateQuestion, waiting: Waiting & {onToken: (token: WrittenToken) => void}) => Promise<Answer>} [generate]
 */

/**
 * What a live page gives its views beside the data.
 * @typedef {object} Live
 * @property {Engine} engine
 * @property {Question} question that the data answer, without edits
 * @property {Answer} answer
 * @property {import("./changes.js").Changes} changes of the model, which views may make; the page asks at once what follows
 * @property {(text: string) => void} setText puts a text into the first field, and asks about it
 * @property {(text: string, answer: Answer) => void} setAnswer puts a text into the first field whose answer is here already, such as one that was generated
 */

