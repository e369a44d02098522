"use strict";
// What the page shows comes from files beside it, each of which is fetched when it is needed.
const source = (() => {
  const MAX_WORDS = 16, NEIGHBORS = 24, MAX_TEXT = 300, BLOBS = 400;
  const MAX_WHOLE_BYTES = 64 * 2 ** 20;   // of a file that a server sends whole though a part was asked for
  const WHOLE = /^[-+]?\d+$/;
  const blobs = [];
  let gallery = null;        // gallery.json
  let sorted = { key: null, numbers: [] };
  let hashes = null;

  // The latest results of a function, by its argument.
  function keep(most, make) {
    const kept = new Map();
    return (key) => {
      const result = kept.get(key) || make(key);
      kept.delete(key);
      kept.set(key, result);
      result.catch(() => kept.delete(key));
      if (kept.size > most) kept.delete(kept.keys().next().value);
      return result;
    };
  }

  async function fetchFile(path, headers) {
    const response = await fetch(path, { headers });
    if (response.ok) return response;
    throw new Error(`${path}: the server answers ${response.status}. Make the gallery again, or reload the page.`);
  }

  async function readJson(path) {
    const bytes = new Uint8Array(await (await fetchFile(path)).arrayBuffer());
    if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return JSON.parse(new TextDecoder().decode(bytes));   // the server has unpacked it
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  const wholeFiles = keep(4, async (path) => {
    const response = await fetchFile(path);
    if (Number(response.headers.get("Content-Length")) <= MAX_WHOLE_BYTES) return response.arrayBuffer();
    await response.body.cancel();
    throw new Error("This web server sends no parts of files (Range), which full images need. Use another one.");
  });
  const blocks = keep(64, (name) => readJson(`rows/${name}`));
  const chunks = keep(32, (name) => readJson(`columns/${name}`));
  const servers = new Map();   // by folder: whether the server sends parts of files

  async function readRange(path, first, end) {
    const folder = path.slice(0, path.lastIndexOf("/"));
    let answered = () => {};
    if (!servers.has(folder)) servers.set(folder, new Promise((resolve) => { answered = resolve; }));
    else if (!(await servers.get(folder))) return (await wholeFiles(path)).slice(first, end);
    let sendsParts = true;
    try {
      const response = await fetchFile(path, { Range: `bytes=${first}-${end - 1}` });
      sendsParts = response.status === 206;
      if (sendsParts) return await response.arrayBuffer();
      await response.body.cancel();
    } finally { answered(sendsParts); }
    return (await wholeFiles(path)).slice(first, end);
  }

  function blobUrl(bytes, type) {
    const url = URL.createObjectURL(new Blob([bytes], { type }));
    blobs.push(url);
    if (blobs.length > BLOBS) URL.revokeObjectURL(blobs.shift());
    return url;
  }

  // Rows are numbered through all runs; a run and a block hold some that follow each other.
  function lastAtMost(starts, number) {
    let low = 0, high = starts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= number) low = middle; else high = middle;
    }
    return low;
  }

  const runOf = (number) => lastAtMost(gallery.runStarts, number);

  async function rowOf(number) {
    const place = lastAtMost(gallery.block_starts, number), index = number - gallery.block_starts[place];
    const block = await blocks(gallery.blocks[place]);
    return { values: block.rows[index], thumbnails: block.thumbnails, index };
  }

  async function tileOf(number, value, distance) {
    const { values } = await rowOf(number);
    return { number, run: gallery.state.runs[runOf(number)].run_id, image_id: values.image_id, status: values.status,
      prompt: (values.prompt || "").slice(0, MAX_TEXT), error: values.error, value: value === undefined ? null : value,
      distance: distance === undefined ? null : distance };
  }

  function columnOf(name) {
    const place = gallery.state.columns.findIndex((column) => column.name === name);
    if (place < 0) throw new Error(`There is no column ${name}. Choose one that the page lists.`);
    return place;
  }

  function numberOf(text) {
    const number = text.trim() === "" ? NaN : Number(text);
    if (Number.isNaN(number)) throw new Error(`${text} is no number. Correct it.`);
    return number;
  }

  // Large whole numbers are texts, since JavaScript's numbers have fewer digits.
  const isEqual = (value, text) => WHOLE.test(value) && WHOLE.test(text) ? BigInt(value) === BigInt(text) : Number(value) === numberOf(text);

  function testOf({ column, operator, value }) {
    const { kind } = gallery.state.columns[columnOf(column)];
    if (operator === "contains") {
      const words = value.toLowerCase().split(/\s+/).filter(Boolean).slice(0, MAX_WORDS);
      return (cell) => { const text = cell.toLowerCase(); return words.every((word) => text.includes(word)); };
    }
    if (kind === "flags") return (cell) => cell.includes(value);
    if (kind === "id") return (cell) => cell === value.toLowerCase();
    if (kind !== "whole" && kind !== "number") return (cell) => cell === value;
    const bound = numberOf(value);
    if (operator === "at_least") return (cell) => Number(cell) >= bound;
    if (operator === "at_most") return (cell) => Number(cell) <= bound;
    return (cell) => isEqual(cell, value);
  }

  function rangeOf(where) {
    let first = 0, end = gallery.state.images;
    for (const { column, value } of where) {
      if (column !== "run_id") continue;
      const run = gallery.state.runs.findIndex((one) => one.run_id === value);
      if (run < 0) throw new Error(`There is no run ${value} in this gallery. Choose another one.`);
      first = Math.max(first, gallery.runStarts[run]);
      end = Math.min(end, gallery.runStarts[run] + gallery.runs[run].images);
    }
    return [first, end];
  }

  // The numbers of the rows that fulfill all conditions, chunk by chunk; with those, the values of further columns.
  async function* matches(where, names, from, signal) {
    const [first, end] = rangeOf(where), size = gallery.chunk_rows;
    const conditions = where.filter(({ column }) => column !== "run_id");
    const tests = conditions.map(testOf), places = [...conditions.map(({ column }) => column), ...names].map(columnOf);
    for (let chunk = Math.floor(Math.max(first, from) / size); chunk * size < end; chunk++) {
      if (signal) signal.throwIfAborted();
      const columns = await Promise.all(places.map((place) => chunks(gallery.columns[place][chunk])));
      const numbers = [], values = names.map(() => []);
      for (let number = Math.max(chunk * size, first, from); number < Math.min((chunk + 1) * size, end); number++) {
        const index = number - chunk * size;
        if (!tests.every((test, one) => columns[one][index] !== null && test(columns[one][index]))) continue;
        numbers.push(number);
        values.forEach((list, one) => list.push(columns[tests.length + one][index]));
      }
      yield { numbers, values, done: Math.min((chunk + 1) * size, end) - first, of: end - first };
    }
  }

  async function sortedNumbers({ where, sort, descending }, signal) {
    const key = JSON.stringify([where, sort, descending]);
    if (sorted.key === key) return sorted.numbers;
    const found = [];
    for await (const { numbers, values: [values], done, of } of matches(where, [sort], 0, signal)) {
      values.forEach((value, place) => { if (value !== null) found.push({ number: numbers[place], value, rank: Number(value) }); });
      source.onProgress(done, of);
    }
    const sign = descending ? -1 : 1;
    found.sort((one, two) => sign * (one.rank - two.rank) || one.number - two.number);
    sorted = { key, numbers: found };
    return found;
  }

  async function images({ where, sort, descending, after, limit }, signal) {
    if (sort) {
      const found = await sortedNumbers({ where, sort, descending }, signal);
      const first = after === null ? 0 : found.findIndex(({ number }) => number === after) + 1;
      return Promise.all(found.slice(first, first + limit).map(({ number, value }) => tileOf(number, String(value))));
    }
    const numbers = [];
    for await (const matched of matches(where, [], after === null ? 0 : after + 1, signal)) {
      numbers.push(...matched.numbers.slice(0, limit - numbers.length));
      if (numbers.length === limit) break;
      source.onProgress(matched.done, matched.of);
    }
    return Promise.all(numbers.map((number) => tileOf(number)));
  }

  async function count(where, signal) {
    if (where.every(({ column }) => column === "run_id")) {
      const [first, end] = rangeOf(where);
      return { images: Math.max(end - first, 0) };
    }
    let found = 0;
    for await (const { numbers, done, of } of matches(where, [], 0, signal)) {
      found += numbers.length;
      source.onProgress(done, of);
    }
    return { images: found };
  }

  async function readHashes() {
    const total = gallery.state.images;
    const read = { high: new Uint32Array(total), low: new Uint32Array(total), known: new Uint8Array(total) };
    for await (const { numbers, values: [values] } of matches([], ["phash"], 0)) {
      values.forEach((value, place) => {
        if (value === null) return;
        const bits = BigInt.asUintN(64, BigInt(value)), number = numbers[place];
        read.high[number] = Number(bits >> 32n);
        read.low[number] = Number(bits & 0xffffffffn);
        read.known[number] = 1;
      });
    }
    return read;
  }

  function countBits(bits) {
    bits -= (bits >>> 1) & 0x55555555;
    bits = (bits & 0x33333333) + ((bits >>> 2) & 0x33333333);
    return Math.imul((bits + (bits >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
  }

  async function neighborsOf(number) {
    hashes = hashes || readHashes().catch((error) => { hashes = null; throw error; });
    const { high, low, known } = await hashes;
    if (!known[number]) return [];
    const byDistance = Array.from({ length: 65 }, () => []);
    for (let other = 0; other < known.length; other++) {
      if (!known[other] || other === number) continue;
      const near = byDistance[countBits(high[other] ^ high[number]) + countBits(low[other] ^ low[number])];
      if (near.length < NEIGHBORS) near.push(other);
    }
    const nearest = byDistance.flatMap((near, distance) => near.map((other) => [other, distance])).slice(0, NEIGHBORS);
    return Promise.all(nearest.map(([other, distance]) => tileOf(other, undefined, distance)));
  }

  async function thumbnail({ number }) {
    const { thumbnails, index } = await rowOf(number);
    if (!thumbnails || thumbnails[1][index] === thumbnails[1][index + 1]) throw new Error("This image has no thumbnail.");
    const bytes = await readRange(`thumbnails/${thumbnails[0]}`, thumbnails[1][index], thumbnails[1][index + 1]);
    return blobUrl(bytes, "image/jpeg");
  }

  async function requireDigest(bytes, sha256) {
    if (!crypto.subtle) return;   // over http, browsers have it on this machine alone
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    if (Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === sha256) return;
    throw new Error("The stored image is another one than when this gallery was made. Make the gallery again.");
  }

  async function image({ number }) {
    const { folder, media_type: type } = gallery.runs[runOf(number)];
    const { values } = await rowOf(number);
    if (folder === null) throw new Error("The full image does not lie beside this page: the command below draws it again.");
    const path = `${folder}/${values.part.split("/").map(encodeURIComponent).join("/")}`, first = Number(values.byte_offset);
    const bytes = await readRange(path, first, first + Number(values.byte_size));
    await requireDigest(bytes, values.sha256);
    return blobUrl(bytes, type);
  }

  async function details({ number }) {
    const { values } = await rowOf(number);
    const row = { values, command: `${gallery.runs[runOf(number)].command} ${values.image_id}` };
    return { row, neighbors: neighborsOf(number) };
  }

  async function state() {
    if (location.protocol === "file:")
      throw new Error("Browsers read no files beside a page on a disk: open it from a web server, such as `python3 -m http.server`.");
    const response = await fetch("gallery.json", { cache: "no-cache" });
    if (response.status === 404) throw new Error("This gallery is not complete yet: run the command that makes it again.");
    if (!response.ok) throw new Error(`gallery.json: the server answers ${response.status}.`);
    gallery = await response.json();
    if (gallery.version !== 1) throw new Error("This page and its data are of different versions. Reload it, or make the gallery again.");
    let start = 0;
    gallery.runStarts = gallery.runs.map((run) => { const before = start; start += run.images; return before; });
    return gallery.state;
  }

  async function trends(column) {
    const place = column === null ? null : columnOf(column);
    return gallery.nights.map((night) => ({ ...night, mean: place === null ? null : night.means[place] }));
  }

  return { unreachable: "A file of this gallery cannot be fetched. Is its server still there?", onProgress() {},
    state, images, count, trends, details, image, thumbnail };
})();
