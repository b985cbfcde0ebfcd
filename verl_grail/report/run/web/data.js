// The run: unpacked from the page's own base64 text. verl_grail/report/run/payload.py documents the layout.

const ALL_ONES = 0, NO_WEIGHTS = 1, WEIGHTS = 2, UNKNOWN_WEIGHT = 65535;
const REASONING = 0, CONTENT = 1, DELIMITER = 2, POST = 3, MASKED = 4;
const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, float32: Float32Array };

async function unpack(text) {
  const binary = atob(text), packed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8, columns = {};
  for (const [name, [dtype, offset, size]] of Object.entries(header.arrays))
    columns[name] = new ARRAYS[dtype](buffer, start + offset, size);
  return new Run(header, columns);
}

/** Start of each row in an array that holds the rows one after the other. */
function starts(count, sizeOf) {
  const out = new Uint32Array(count + 1);
  for (let i = 0; i < count; i++) out[i + 1] = out[i] + sizeOf(i);
  return out;
}

class Run {
  constructor(header, columns) {
    Object.assign(this, header);
    this.rows = columns;
    this.count = columns.step.length;
    const { length, weighing, contents_count, masked_count } = columns;
    this.tokenStart = starts(this.count, (i) => length[i]);
    this.weightStart = starts(this.count, (i) => (weighing[i] === WEIGHTS ? length[i] : 0));
    this.contentStart = starts(this.count, (i) => 2 * contents_count[i]);
    this.maskedStart = starts(this.count, (i) => 2 * masked_count[i]);
  }

  stepOf(i) { return this.sums.steps[this.rows.step[i]]; }

  hasAnswer(i) { return this.rows.answer[2 * i + 1] > this.rows.answer[2 * i]; }

  token(i, t) { return this.vocabulary[this.rows.ids[this.tokenStart[i] + t]]; }

  /** Weight of a token; NaN if there is none. */
  weight(i, t) {
    if (this.rows.weighing[i] !== WEIGHTS) return this.rows.weighing[i] === ALL_ONES ? 1 : NaN;
    const stored = this.rows.weights[this.weightStart[i] + t];
    return stored === UNKNOWN_WEIGHT ? NaN : stored * this.weight_scale;
  }

  /** [lowest, highest] base advantage over the row's tokens, or null. */
  advantage(i) {
    const low = this.rows.advantage_low[i], high = this.rows.advantage_high[i];
    return Number.isNaN(low) ? null : [low, high];
  }

  /** Region of every token of a row, as Uint8Array. */
  regions(i) {
    const out = new Uint8Array(this.rows.length[i]);
    if (this.hasAnswer(i)) {
      out.fill(DELIMITER, this.rows.answer[2 * i], this.rows.answer[2 * i + 1]);
      out.fill(POST, this.rows.answer[2 * i + 1]);
      const ends = this.rows.contents_ends;
      for (let k = this.contentStart[i]; k < this.contentStart[i + 1]; k += 2) out.fill(CONTENT, ends[k], ends[k + 1]);
    }
    const ends = this.rows.masked_ends;
    for (let k = this.maskedStart[i]; k < this.maskedStart[i + 1]; k += 2) out.fill(MASKED, ends[k], ends[k + 1]);
    return out;
  }

  /** Text of a response, or of a part of its tokens. */
  text(i, from = 0, to = this.rows.length[i]) {
    if (this.rows.length[i] === 0) return this.outputs[this.rows.output[i]];
    const { ids } = this.rows, start = this.tokenStart[i], pieces = new Array(to - from);
    for (let t = from; t < to; t++) pieces[t - from] = this.vocabulary[ids[start + t]];
    return pieces.join("");
  }

  /** What the answer says: its content, or null. Without content ranges the answer with its delimiters. */
  answerText(i) {
    if (!this.hasAnswer(i)) return null;
    const { contents_ends, answer } = this.rows, parts = [];
    for (let k = this.contentStart[i]; k < this.contentStart[i + 1]; k += 2)
      parts.push(this.text(i, contents_ends[k], contents_ends[k + 1]));
    return parts.length ? parts.join(", ") : this.text(i, answer[2 * i], answer[2 * i + 1]);
  }

  /** Lower-cased responses; made at the first search, kept. */
  searchTexts() {
    this.searchable ??= Array.from({ length: this.count }, (_, i) => this.text(i).toLowerCase());
    return this.searchable;
  }
}

const VERDICTS = ["wrong", "correct", MISSING], VERDICT_MARKS = ["✗", "✓", "?"];
