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

const LETTER = /[\p{L}\p{N}_]/u;

/** What both kinds have: special tokens are found in the text, and what is between them is encoded. */
class Tokens {
  /** `normalised` gives the text in which what is between special tokens is cut. */
  constructor({ tokens, special, kept, before, rules }, normalised) {
    this.tokens = tokens;
    this.special = new Map(Object.entries(special));
    this.kept = new Set(kept);
    this.hidden = new Set([...this.special].filter(([text]) => !this.kept.has(text)).map(([, number]) => number));
    this.vocab = new Map();
    this.before = before.map((name) => this.special.get(name));
    this.normalised = normalised;
    this.rules = new Map([...this.special].map(([text, number]) => [number, rules[text] ?? []]));
    const late = ([, number]) => this.rules.get(number).includes("normalized");
    const second = [...this.special].filter(late).map(([text, number]) => [normalised(text), number]);
    const first = [...this.special].filter((one) => !late(one));
    this.texts = new Map([...first, ...second].map(([text, number]) => [number, text]));
    this.tables = [first, second].map(tableOf);
  }

  encode(text, begins) {
    const out = begins ? [...this.before] : [];
    for (const [number, part, at] of this.cut(this.tables[0], text)) {
      if (number !== undefined) out.push(number);
      else
        for (const [inner, piece, begin] of this.cut(this.tables[1], this.normalised(part)))
          for (const one of inner === undefined ? this.part(piece, at + begin === 0) : [inner]) out.push(one);
    }
    return out;
  }

  /** Yield the parts of a text in order: a token's number, or none and the text between, and where it begins. */
  *cut(table, text) {
    let at = 0;
    for (const found of table ? text.matchAll(table.search) : []) {
      const number = table.numbers.get(found[0]);
      const rules = this.rules.get(number);
      let begin = found.index;
      let end = begin + found[0].length;
      const beside = [[...text.slice(Math.max(0, begin - 2), begin)].at(-1), [...text.slice(end, end + 2)][0]];
      if (rules.includes("single_word") && beside.some((letter) => letter && LETTER.test(letter))) continue;
      while (rules.includes("lstrip") && begin > at && /\s/u.test(text[begin - 1])) begin--;
      while (rules.includes("rstrip") && end < text.length && /\s/u.test(text[end])) end++;
      if (begin > at) yield [undefined, text.slice(at, begin), at];
      yield [number, "", begin];
      at = end;
    }
    if (at < text.length) yield [undefined, text.slice(at), at];
  }

  /** Return the bytes of a token; those of special tokens that are no text are none. */
  bytes(number) {
    return this.hidden.has(number) ? new Uint8Array() : this.plain(this.texts.get(number) ?? this.tokens[number] ?? "");
  }
}

/** Return an expression that finds texts, the longest first, and their numbers. */
function tableOf(tokens) {
  const numbers = new Map();
  for (const [text, number] of tokens) if (text && !numbers.has(text)) numbers.set(text, number);
  const names = [...numbers.keys()].sort((a, b) => b.length - a.length);
  return names.length ? { search: new RegExp(names.map(escaped).join("|"), "gu"), numbers } : null;
}

const inForm = (form, text) => (form ? text.normalize(form) : text);

export class Tokenizer extends Tokens {
  /** `data` is tokenizer.json of the page: tokens by number, merges in order, the pattern, special tokens by text. */
  constructor(data) {
    super(data, (text) => inForm(data.form, text));
    const { tokens, merges, pattern, whole, prefix } = data;
    tokens.forEach((text, number) => this.texts.has(number) || this.vocab.set(text, number));
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
    const bytes = Array.from(token, (letter) => BYTES.get(letter));
    return bytes.includes(undefined) ? new TextEncoder().encode(token) : Uint8Array.from(bytes);
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
  /** `data` is tokenizer.json of the page: tokens and their scores by number, or merges, special tokens by text. */
  constructor(data) {
    super(data, (text) => {
      const told = inForm(data.form, text);
      if (data.prefix === "bare" || data.prefix === "first") return told;
      return (data.prefix && told ? SPACE : "") + told.replaceAll(" ", SPACE);
    });
    const { tokens, scores, merges, prefix, unknown, fuse, words } = data;
    tokens.forEach((text, number) => this.vocab.set(text, number));
    this.byte = (value) => this.vocab.get(`<0x${value.toString(16).toUpperCase().padStart(2, "0")}>`);
    this.ranks = merges && new Map(merges.map((pair, rank) => [pair, rank]));
    // A space that the tokenizer puts in front of a text is no part of an answer.
    Object.assign(this, { scores, prefix, unknown, fuse, words, strips: Boolean(prefix) });
  }

  part(text, begins) {
    const spaced = (this.prefix === "bare" || (this.prefix === "first" && begins)) && text[0] !== SPACE && text[0] !== " ";
    const whole = (spaced ? SPACE : "") + text.replaceAll(" ", SPACE);
    const parts = this.words ? whole.match(/\u2581[^\u2581]*|[^\u2581]+/gu) : [whole];
    return parts.flatMap((part) => this.numbers(this.joined(Array.from(part))));
  }

  /** Return the numbers of pieces; of those that have none the bytes, or the number for what is unknown. */
  numbers(pieces) {
    const out = [];
    let fused = false;
    for (const piece of pieces) {
      const number = this.vocab.get(piece);
      const held = number === undefined ? Array.from(new TextEncoder().encode(piece), (value) => this.byte(value)) : [number];
      const unknown = held.includes(undefined);
      if (!unknown) out.push(...held);
      else if (!fused || !this.fuse) out.push(this.unknown);
      fused = unknown;
    }
    return out;
  }

  /** Return how late two neighbours are joined, or nothing where they are not. */
  cost(left, right) {
    if (this.ranks) return this.ranks.get(`${left} ${right}`);
    const number = this.vocab.get(left + right);
    return number === undefined ? undefined : -this.scores[number];
  }

  /** Join pairs, the best first. */
  joined(parts) {
    const following = parts.map((_, i) => (i + 1 < parts.length ? i + 1 : -1));
    const before = parts.map((_, i) => i - 1);
    const waiting = new Waiting();
    const offer = (left) => {
      const right = left < 0 ? -1 : following[left];
      if (right < 0) return;
      const cost = this.cost(parts[left], parts[right]);
      if (cost !== undefined) waiting.push([cost, left, right, parts[left] + parts[right]]);
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
export const tokenizerOf = (data) => (data.pattern ? new Tokenizer(data) : new Pieces(data));
