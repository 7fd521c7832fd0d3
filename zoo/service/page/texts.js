// Documents of a file, and the pieces of a text that spans divide it into.
const MAX_BYTES = 20e6;

// Texts of a jsonl file, or a plain text as the only document.
export function documentsOf(name, content) {
  if (content.length > MAX_BYTES) throw new Error("larger than 20 MB");
  if (!/\.(jsonl|ndjson|json)$/i.test(name)) return [content];
  const lines = content.split("\n").filter((line) => line.trim());
  return lines.map((line, number) => {
    let row;
    try {
      row = JSON.parse(line);
    } catch {
      throw new Error(`line ${number + 1} is not JSON`);
    }
    const text = typeof row === "string" ? row : (row?.text ?? Object.values(row ?? {}).find((value) => typeof value === "string"));
    if (typeof text !== "string") throw new Error(`line ${number + 1} has no text`);
    return text;
  });
}

// Pieces in order, some with a weight in (0, 1], the largest one 1. Spans count characters; strings count units of UTF-16.
export function pieces(text, spans) {
  const unit = units(text);
  const largest = Math.max(...spans.map((span) => span.weight), Number.MIN_VALUE);
  const found = [];
  let end = 0;
  for (const span of [...spans].sort((one, other) => one.start - other.start)) {
    const [from, to] = [Math.max(unit(span.start), end), unit(span.end)];
    if (to <= from || !span.weight) continue;
    if (from > end) found.push({ text: text.slice(end, from) });
    found.push({ text: text.slice(from, to), weight: span.weight / largest });
    end = to;
  }
  found.push({ text: text.slice(end) });
  return found;
}

// Maps the number of a character to its place in the string.
function units(text) {
  if (!/[\ud800-\udbff]/.test(text)) return (place) => place;
  const places = [];
  let place = 0;
  for (const character of text) {
    places.push(place);
    place += character.length;
  }
  return (number) => places[number] ?? text.length;
}
