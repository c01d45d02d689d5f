/** Text to numbers, and numbers to bytes: byte-level BPE as webtorch.io.Tokenizer has it, and the BPE of webtorch.io.SentencePiece. */

/** Return the letter of each byte in a vocabulary: printable ones are themselves, others follow 255 (Radford et al., 2019). */
function lettersOfBytes() {
  const out = [];
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    out.push(String.fromCodePoint(plain ? byte : next++));
  }
  return out;
}

const LETTERS = lettersOfBytes();
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

const SPACE = "\u2581";

/** What both kinds have: special tokens are found in the text, and what is between them is encoded. */
class Tokens {
  constructor({ tokens, special, kept, before, form, strip }, written) {
    this.tokens = tokens;
    this.special = new Map(Object.entries(special));
    this.named = new Map([...this.special].map(([text, number]) => [number, text]));
    this.kept = new Set(kept);
    this.hidden = new Set([...this.special].filter(([text]) => !this.kept.has(text)).map(([, number]) => number));
    this.vocab = new Map();
    this.before = before.map((name) => this.special.get(name));
    // What stands in a text for each.
    this.written = new Map([...this.special].map(([text, number]) => [this.kept.has(text) ? written(text) : text, number]));
    const names = [...this.written.keys()].sort((a, b) => b.length - a.length);
    this.marks = names.length ? new RegExp(`(${names.map(escaped).join("|")})`, "u") : null;
    this.said = written;
    this.form = form;
    // White space behind these goes.
    this.strip = new Set(strip);
  }

  encode(text, begins) {
    const out = begins ? [...this.before] : [];
    const parts = this.marks ? text.split(this.marks) : [text];
    parts.forEach((part, i) => {
      if (i % 2) return out.push(this.written.get(part));
      const behind = i && this.strip.has(parts[i - 1]) ? part.trimStart() : part;
      const plain = this.form ? behind.normalize(this.form) : behind;
      if (plain) for (const number of this.part(plain, i === 0)) out.push(number);
    });
    return out;
  }

  /** Return the bytes of a token; those of special tokens that are no text are none. */
  bytes(number) {
    if (this.hidden.has(number)) return new Uint8Array();
    const name = this.named.get(number);
    return name === undefined ? this.plain(this.tokens[number] ?? "") : new TextEncoder().encode(this.said(name));
  }
}

export class Tokenizer extends Tokens {
  /** `data` is tokenizer.json of the page: tokens by number, merges in order, the pattern, special tokens by text. */
  constructor(data) {
    super(data, (text) => text);
    const { tokens, merges, pattern, whole, prefix } = data;
    tokens.forEach((text, number) => this.named.has(number) || this.vocab.set(text, number));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    this.pattern = new RegExp(pattern, "gu");
    Object.assign(this, { whole, prefix, known: new Map(), strips: false });
  }

  part(text) {
    const whole = this.prefix && text[0] !== " " ? ` ${text}` : text;
    return Array.from(whole.matchAll(this.pattern)).flatMap(([piece]) => this.piece(piece));
  }

  piece(text) {
    let found = this.known.get(text);
    if (found) return found;
    const letters = Array.from(new TextEncoder().encode(text), (byte) => LETTERS[byte]);
    const whole = this.whole ? this.vocab.get(letters.join("")) : undefined;
    found = whole === undefined ? this.joined(letters).map((token) => this.vocab.get(token)) : [whole];
    if (found.includes(undefined)) throw new Error(`The vocabulary has no token for a part of ${JSON.stringify(text)}.`);
    this.known.set(text, found);
    return found;
  }

  /** Join pairs, those of the earliest merge first. */
  joined(parts) {
    while (parts.length > 1) {
      let best = Infinity;
      let pair = "";
      for (let i = 0; i + 1 < parts.length; i++) {
        const key = `${parts[i]} ${parts[i + 1]}`;
        const rank = this.ranks.get(key) ?? Infinity;
        if (rank < best) [best, pair] = [rank, key];
      }
      if (best === Infinity) break;
      const out = [];
      for (let i = 0; i < parts.length; i++) {
        if (i + 1 < parts.length && `${parts[i]} ${parts[i + 1]}` === pair) out.push(parts[i] + parts[++i]);
        else out.push(parts[i]);
      }
      parts = out;
    }
    return parts;
  }

  plain(token) {
    return Uint8Array.from(Array.from(token), (letter) => BYTES.get(letter) ?? 63);
  }
}

/** A heap of [cost, place, ...]: the least cost first, of equal ones the place on the left. */
class Waiting {
  constructor() {
    this.items = [];
  }

  less(i, j) {
    const [a, b] = [this.items[i], this.items[j]];
    return a[0] < b[0] || (a[0] === b[0] && a[1] < b[1]);
  }

  swap(i, j) {
    [this.items[i], this.items[j]] = [this.items[j], this.items[i]];
  }

  push(item) {
    let i = this.items.push(item) - 1;
    for (let above = (i - 1) >> 1; i > 0 && this.less(i, above); above = (i - 1) >> 1) {
      this.swap(i, above);
      i = above;
    }
  }

  pop() {
    const [first] = this.items;
    const last = this.items.pop();
    if (this.items.length) this.items[0] = last;
    for (let i = 0; ; ) {
      let least = i;
      for (const below of [2 * i + 1, 2 * i + 2]) if (below < this.items.length && this.less(below, least)) least = below;
      if (least === i) return first;
      this.swap(i, least);
      i = least;
    }
  }
}

export class Pieces extends Tokens {
  /** `data` is tokenizer.json of the page: tokens and their scores by number, special tokens by text. */
  constructor(data) {
    super(data, (text) => text.replaceAll(SPACE, " "));
    const { tokens, scores, prefix, unknown } = data;
    tokens.forEach((text, number) => this.vocab.set(text, number));
    this.byte = (value) => this.vocab.get(`<0x${value.toString(16).toUpperCase().padStart(2, "0")}>`);
    // A space that the tokenizer puts in front of a text is no part of an answer.
    Object.assign(this, { scores, prefix, unknown, strips: Boolean(prefix) });
  }

  part(text) {
    const spaced = this.prefix ? ` ${text}` : text;
    return this.joined(Array.from(spaced.replaceAll(" ", SPACE))).flatMap((piece) => {
      const number = this.vocab.get(piece);
      if (number !== undefined) return [number];
      const bytes = Array.from(new TextEncoder().encode(piece), (value) => this.byte(value));
      return bytes.includes(undefined) ? [this.unknown] : bytes;
    });
  }

  /** Join pairs, the best first. */
  joined(parts) {
    const following = parts.map((_, i) => (i + 1 < parts.length ? i + 1 : -1));
    const before = parts.map((_, i) => i - 1);
    const waiting = new Waiting();
    const offer = (left) => {
      const right = left < 0 ? -1 : following[left];
      if (right < 0) return;
      const whole = parts[left] + parts[right];
      const number = this.vocab.get(whole);
      if (number !== undefined) waiting.push([-this.scores[number], left, right, whole]);
    };
    parts.forEach((_, left) => offer(left));
    while (waiting.items.length) {
      const [, left, right, whole] = waiting.pop();
      // What was joined meanwhile is another text.
      if (following[left] !== right || !parts[left] || parts[left] + parts[right] !== whole) continue;
      [parts[left], parts[right]] = [whole, ""];
      following[left] = following[right];
      if (following[right] >= 0) before[following[right]] = left;
      following[right] = -1;
      offer(before[left]);
      offer(left);
    }
    return parts.filter(Boolean);
  }

  plain(token) {
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
    return byte ? Uint8Array.of(parseInt(byte[1], 16)) : new TextEncoder().encode(token.replaceAll(SPACE, " "));
  }
}

/** Return the tokenizer of tokenizer.json. */
export const tokenizerOf = (data) => (data.scores ? new Pieces(data) : new Tokenizer(data));
