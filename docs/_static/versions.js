// Lists the versions that stand beside this one in versions.json, where the site has several.
// tools/publish_docs.py writes the file; a build that is opened from a disk has none, and no list.
"use strict";

addEventListener("DOMContentLoaded", async () => {
  const list = document.getElementById("versions");
  const root = new URL(list.dataset.root, location.href);
  if (!root.protocol.startsWith("http")) return;
  const site = new URL("..", root);
  const answer = await fetch(new URL("versions.json", site));
  if (!answer.ok) return;
  for (const { name, url } of await answer.json()) {
    const there = new URL(url, site).href;
    list.add(new Option(name, there, false, there === root.href));
  }
  list.parentElement.hidden = false;
  list.addEventListener("change", async () => {
    // The same page, unless that version has none of its name.
    const page = list.value + location.href.slice(root.href.length);
    const found = await fetch(page, { method: "HEAD" });
    location.href = found.ok ? page : list.value;
  });
});
