// ---------------------------------------------------------------- the cursor

let cursor = 0;
const sentence = () => critics.map((critic) => {
  const at = cursor * critic.scales, top = critic.scales - 1;
  let most = 0;
  for (let z = 1; z <= top; z++) if (Math.abs(critic.w[at + z]) > Math.abs(critic.w[at + most])) most = z;
  const horizon = (z) => (Number.isFinite(critic.horizons[z]) ? `${text(critic.horizons[z])} steps` : "all that is left");
  const part = critic.scales > 1
    ? `; its largest part is W${most}, ${most ? `what ${horizon(most)} add to ${horizon(most - 1)}` : `the next ${horizon(0)}`} (${percent(share(critic, cursor, most))} of all parts)`
    : "";
  const name = critics.length > 1 ? `${critic.name}: ` : "";
  return `${name}V over ${horizon(top)} is ${text(critic.v[at + top])}${part}.`;
}).join(" ");

const show = () => {
  critics.forEach((critic, c) => {
    for (let z = 0; z < critic.scales; z++) {
      const at = cursor * critic.scales + z;
      $(`w-${c}-${z}`).textContent = text(critic.w[at]);
      $(`v-${c}-${z}`).textContent = text(critic.v[at]);
      $(`share-${c}-${z}`).textContent = percent(share(critic, cursor, z));
      $(`came-${c}-${z}`).textContent = text(critic.came[at]);
    }
  });
  $("step").textContent = cursor.toLocaleString("en");
  $("cursor").value = cursor;
  if (!playing) $("reading").textContent = `Step ${cursor.toLocaleString("en")}, reward ${text(rewards[cursor])}. ${sentence()}`;
  const inside = cursor >= view[0] && cursor <= view[1];
  $("line").hidden = !inside;
  if (inside) $("line").style.transform = `translateX(${xOf(cursor) - 1}px)`;
  drawHorizons();
  drawFrame();
  point();
};

const drawAll = () => {
  charts.forEach(drawChart);
  $("range").textContent = `steps ${Math.round(view[0]).toLocaleString("en")} – ${Math.round(view[1]).toLocaleString("en")}`;
  show();
};

/** Show so many steps, with the cursor this share of them behind the first where there is room. */
const look = (width, behind) => {
  const start = Math.min(Math.max(cursor - width * behind, 0), Math.max(steps - 1 - width, 0));
  view = [start, start + width];
  drawAll();
};

const moveTo = (t) => {
  cursor = Math.min(Math.max(Math.round(t), 0), steps - 1);
  if (cursor < view[0] || cursor > view[1]) look(view[1] - view[0], 0.1);
  else show();
};

const zoom = (factor) => {
  const whole = Math.max(steps - 1, 1);
  look(Math.min(Math.max((view[1] - view[0]) * factor, Math.min(20, whole)), whole), 0.5);
};

// ---------------------------------------------------------------- playing

let playing = false, began = 0, from = 0;
const play = (on) => {
  playing = on && steps > 1;
  $("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
  $("play").setAttribute("aria-pressed", playing);
  if (!playing) return show();
  if (cursor === steps - 1) moveTo(0);
  from = cursor;
  began = performance.now();
  requestAnimationFrame(advance);
};
const advance = (now) => {
  if (!playing) return;
  const t = from + Math.floor(((now - began) / 1000) * Number($("speed").value));
  if (t !== cursor && t >= 0) moveTo(t);
  if (cursor >= steps - 1) play(false);
  else requestAnimationFrame(advance);
};
const step = (t) => { if (playing) play(false); moveTo(t); };

// ---------------------------------------------------------------- what a person does

$("play").onclick = () => play(!playing);
$("back").onclick = () => step(cursor - 1);
$("on").onclick = () => step(cursor + 1);
$("cursor").oninput = (event) => step(Number(event.target.value));
$("speed").onchange = () => { from = cursor; began = performance.now(); };
$("closer").onclick = () => zoom(0.5);
$("wider").onclick = () => zoom(2);

const toggle = (c, z, on) => {
  const box = $(`shown-${c}-${z}`);
  if (!box) return;
  box.checked = critics[c].shown[z] = on;
  box.closest("tr").classList.toggle("off", !on);
  charts.filter((chart) => chart.dataset.critic !== undefined).forEach(drawChart);
  drawHorizons();
};
for (const box of document.querySelectorAll("input[data-scale]")) {
  box.onchange = () => toggle(Number(box.dataset.critic), Number(box.dataset.scale), box.checked);
}

document.addEventListener("keydown", (event) => {
  const tag = event.target.tagName, type = event.target.type;
  if (event.ctrlKey || event.metaKey || event.altKey || tag === "SELECT") return;
  if ((event.key === " " && (tag === "BUTTON" || type === "checkbox"))) return;
  const far = event.shiftKey ? 10 : 1;
  const actions = {
    ArrowLeft: () => step(cursor - far), ArrowRight: () => step(cursor + far),
    Home: () => step(0), End: () => step(steps - 1), " ": () => play(!playing),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "−": () => zoom(2),
  };
  if (/^[1-9]$/.test(event.key)) {
    const z = Number(event.key) - 1;
    critics.forEach((critic, c) => z < critic.scales && toggle(c, z, !critic.shown[z]));
  } else if (actions[event.key]) actions[event.key]();
  else return;
  event.preventDefault();
});

const area = $("charts"), tip = $("tip");
const within = (event) => event.clientX - area.getBoundingClientRect().left - area.clientLeft;
const say = (lines, { clientX, clientY }) => {
  tip.textContent = lines.join("\n");
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const right = clientX + 16 + width < innerWidth;
  tip.style.left = `${Math.max(4, right ? clientX + 16 : clientX - 16 - width)}px`;
  tip.style.top = `${Math.min(Math.max(4, clientY - height / 2), innerHeight - height - 4)}px`;
};
const hover = (event) => {
  const t = stepAt(within(event));
  $("hover").hidden = false;
  $("hover").style.transform = `translateX(${xOf(t)}px)`;
  const lines = [`step ${t.toLocaleString("en")}   reward ${text(rewards[t])}${lives ? `   lives ${lives[t]}` : ""}`];
  critics.forEach((critic) => {
    if (critics.length > 1) lines.push(critic.name);
    critic.horizons.forEach((horizon, z) => {
      if (!critic.shown[z]) return;
      const at = t * critic.scales + z;
      lines.push(`h ${named(horizon)}:  W ${text(critic.w[at])}   V ${text(critic.v[at])}`);
    });
  });
  say(lines, event);
};
area.addEventListener("pointermove", (event) => {
  if (event.pointerType !== "touch") hover(event);
  if (event.buttons & 1) step(stepAt(within(event)));
});
area.addEventListener("pointerdown", (event) => {
  if (event.button === 0) step(stepAt(within(event)));
});

// The panel: V at the horizon under the pointer, which may lie between trained ones.
const panel = $("horizons");
let pointer = null;
const point = () => {
  if (!pointer) return;
  const lines = [`step ${cursor.toLocaleString("en")}`];
  atPoint(pointed).forEach((found, c) => {
    if (!found) return;
    if (critics.length > 1) lines.push(critics[c].name);
    lines.push(`h ${named(found.horizon)}   γ ${text(1 - 1 / found.horizon)}`);
    lines.push(found.w === undefined ? `V ${text(found.v)}, between trained horizons` : `W ${text(found.w)}   V ${text(found.v)}   came ${text(found.came)}`);
  });
  say(lines, pointer);
};
const pointAt = (event) => {
  pointer = { clientX: event.clientX, clientY: event.clientY };
  pointed = event.clientX - panel.getBoundingClientRect().left;
  drawHorizons();
  point();
};
panel.addEventListener("pointermove", pointAt);
panel.addEventListener("pointerdown", pointAt);
panel.addEventListener("pointerleave", () => { pointer = pointed = null; tip.hidden = true; drawHorizons(); });

area.addEventListener("pointerleave", () => { $("hover").hidden = tip.hidden = true; });

const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
const csv = () => {
  const heads = ["step", "reward", "terminated", "truncated", ...(lives ? ["lives"] : [])];
  critics.forEach((critic) => {
    const end = critics.length > 1 ? ` ${critic.name}` : "";
    for (const kind of ["W", "V", "came"]) critic.gammas.forEach((gamma) => heads.push(quoted(`${kind}(${gamma})${end}`)));
  });
  const rows = [heads.join(",")];
  const plain = (value) => (Number.isFinite(value) ? String(value) : "");
  for (let t = 0; t < steps; t++) {
    const row = [t, plain(rewards[t]), terminated[t], truncated[t], ...(lives ? [lives[t]] : [])];
    for (const critic of critics) for (const kind of ["w", "v", "came"]) {
      for (let z = 0; z < critic.scales; z++) row.push(plain(critic[kind][t * critic.scales + z]));
    }
    rows.push(row.join(","));
  }
  return `${rows.join("\r\n")}\r\n`;
};
$("export").onclick = () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  link.download = `${data.file}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

dark.addEventListener("change", () => { readTheme(); drawAll(); });
let waiting = 0;
new ResizeObserver(() => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawAll); }).observe(area);

const asked = Number((location.hash.match(/^#step=(\d+)$/) || [])[1] ?? data.step);
readTheme();
cursor = Math.min(asked, steps - 1);
drawAll();
loadFrames();
document.documentElement.dataset.page = "ready";
