/** Byte-level BPE, as webtorch.io.Tokenizer has it: text to numbers, and numbers to bytes. */

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

export class Tokenizer {
  /** `data` is tokenizer.json of the page: tokens by number, merges in order, the pattern, special tokens by text. */
  constructor({ tokens, merges, pattern, special, kept, before, whole, prefix }) {
    this.tokens = tokens;
    this.special = new Map(Object.entries(special));
    this.named = new Map([...this.special].map(([text, number]) => [number, text]));
    this.hidden = new Set([...this.special].filter(([text]) => !kept.includes(text)).map(([, number]) => number));
    this.vocab = new Map();
    tokens.forEach((text, number) => this.named.has(number) || this.vocab.set(text, number));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    this.pattern = new RegExp(pattern, "gu");
    const names = [...this.special.keys()].sort((a, b) => b.length - a.length);
    this.marks = names.length ? new RegExp(`(${names.map(escaped).join("|")})`, "u") : null;
    Object.assign(this, { before, whole, prefix, known: new Map() });
  }

  encode(text, begins) {
    const out = begins ? this.before.map((name) => this.special.get(name)) : [];
    const parts = this.marks ? text.split(this.marks) : [text];
    parts.forEach((part, i) => {
      if (i % 2) out.push(this.special.get(part));
      else if (part) {
        const whole = this.prefix && !/^\s/u.test(part) ? ` ${part}` : part;
        for (const [piece] of whole.matchAll(this.pattern)) out.push(...this.piece(piece));
      }
    });
    return out;
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

  /** Return the bytes of a token; those of special tokens that are no text are none. */
  bytes(number) {
    if (this.hidden.has(number)) return new Uint8Array();
    const name = this.named.get(number);
    if (name !== undefined) return new TextEncoder().encode(name);
    return Uint8Array.from(Array.from(this.tokens[number] ?? ""), (letter) => BYTES.get(letter) ?? 63);
  }
}
