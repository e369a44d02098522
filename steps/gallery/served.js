"use strict";
// What the page shows comes from the process that serves it.
const source = {
  unreachable: "The gallery does not answer. Is it still running?",

  async ask(path, options, signal) {
    const chosen = Object.entries(options || {}).filter(([, value]) => value !== null && value !== undefined);
    const query = chosen.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
    const response = await fetch(query ? `${path}?${query}` : path, { signal });
    const content = await response.json();
    if (!response.ok) throw new Error(content.error);
    return content;
  },

  path: (noun, tile) => `/${noun}/${encodeURIComponent(tile.run)}/${encodeURIComponent(tile.image_id)}`,

  state: () => source.ask("/state"),
  images: (query, signal) => source.ask("/images", { ...query, where: JSON.stringify(query.where) }, signal),
  count: (where, signal) => source.ask("/count", { where: JSON.stringify(where) }, signal),
  trends: (column) => source.ask("/trends", { column }),
  details: (tile) => source.ask(source.path("row", tile), { number: tile.number }),
  image: (tile) => `${source.path("image", tile)}?number=${tile.number}`,
  thumbnail: (tile) => `${source.path("thumbnail", tile)}?number=${tile.number}`,
};
