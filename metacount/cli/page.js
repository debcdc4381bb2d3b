"use strict";

// Python's // and %, which round towards minus infinity.
function floorDiv(a, b) {
  const quotient = a / b;
  return a % b !== 0n && (a < 0n) !== (b < 0n) ? quotient - 1n : quotient;
}
function floorMod(a, b) { return a - b * floorDiv(a, b); }
function least(...all) { return all.reduce((a, b) => (b < a ? b : a)); }
function most(...all) { return all.reduce((a, b) => (b > a ? b : a)); }

const models = [
//MODELS//
];
const words = //WORDS//;
function say(text) { return words[text] || text; }

// ---- a setting: texts of the inputs, by the names of the sizes ----

function wholeNumber(text, isLength) {
  const found = /^([0-9][0-9_,]*)([kKmM]?)$/.exec(text.trim());
  if (!found || found[1].length > 40 || (found[2] && !isLength)) return null;
  const unit = { "": 1n, k: 1024n, m: 1048576n }[found[2].toLowerCase()];
  return BigInt(found[1].replace(/[_,]/g, "")) * unit;
}

function numbersOf(model, texts) {
  const v = { ...model.fixed };
  for (const size of model.sizes) {
    const number = wholeNumber(texts[size.name], size.isLength);
    if (number === null) {
      return { problem: `${size.name} must be a whole number: got ${texts[size.name] || "nothing"}` };
    }
    v[size.name] = number;
  }
  const bytes = model.dtypes[texts.dtype];
  if (bytes === undefined) {
    return { problem: `dtype is unknown: got ${texts.dtype}; choose one of ` +
      Object.keys(model.dtypes).join(", ") };
  }
  v[model.bytesName] = bytes;
  const problem = otherStructure(model, v) || brokenRule(model, v);
  if (problem) return { problem };
  for (const size of model.derived) v[size.name] = size.value(v);
  return { v };
}

function brokenRule(model, v) {
  const rule = model.rules.find((one) => one.test(v) !== one.answer);
  return rule === undefined ? null : `these forms are not of a setting where ${rule.says}; ` +
    `metacount count ${model.id} with --set says more`;
}

function otherStructure(model, v) {
  const size = model.sizes.find((one) => v[one.name] < one.least);
  return size === undefined ? null : `${size.name} must be at least ${size.least} for these forms: ` +
    `got ${v[size.name]}; metacount count ${model.id} --set ${size.name}=${v[size.name]} says more`;
}

function warningsOf(model, v) {
  const said = [];
  const run = v.source_len === undefined ? v.seq_len : most(v.seq_len, v.source_len);
  if (model.longest !== null && run > model.longest(v)) {
    said.push(`the model has ${model.longest(v)} learned positions and cannot run ${run}; ` +
      "the counts go on as if it could");
  }
  if (model.chunked !== null && v.seq_len > model.chunked(v)) {
    said.push(`decode and KV cache take a chunk of ${model.chunked(v)} positions at its fullest: ` +
      "an upper bound for layers with chunked attention");
  }
  return said;
}

// ---- proofs: the cases of the record, asked at a setting as Python asks them ----

function changed(model, v) {
  return model.sizes.some((one) => !model.runNames.includes(one.name) && v[one.name] !== one.number);
}

function asked(model, v) {
  // a config's own fields say nothing of a model whose sizes were changed
  const same = !changed(model, v);
  const known = same ? { ...model.config, ...v } : { ...v };
  for (const [name, member] of Object.entries(model.aliases)) known[name] = v[member];
  const unknown = (names, at) => names.find((name) => at[name] === undefined);
  const fails = model.proofs.conditions.map((condition) => {
    const says = condition.says || condition.test, at = { ...known };
    for (const [field, names, made] of condition.defaults) {
      const given = same ? names.filter((one) => model.given.includes(one)) : [];
      at[field] = given.length ? model.config[`config_${given[0]}`] : made(at);
    }
    const name = unknown(condition.names, at);
    if (name !== undefined) return `${says}: ${name.replace(/^config_/, "")} is not known here`;
    try { return condition.holds(at) ? "" : `shown only where ${says}`; }
    catch { return `${says}: cannot be asked`; }
  });
  for (const [name, made] of model.proofs.layers) known[name] = made(known);
  return {
    fails,
    form: (quantity) => model.proofs.forms[quantity](known),
    zero(question) {
      try { return unknown(question.names, known) === undefined && question.holds(known); }
      catch { return false; }
    },
  };
}

function saidOf(proofs, cases, question, figure, right) {
  if (figure !== right) {
    const text = `${grouped(figure)} here, ${grouped(right)} by the form that was proven`;
    return { verdict: "other figure", text, where: [] };
  }
  const wrong = cases.filter((one) => "differs" in one);
  if (wrong.length) return differs(proofs, wrong, question);
  const missed = [];
  for (const one of cases) {
    if ("problem" in one) continue;
    const fails = one.where.map((i) => question.fails[i]).filter((why) => why);
    if (fails.length === 0) {
      const where = one.where.map((i) => proofs.conditions[i].says).filter((says) => says);
      const verdict = "more" in one ? "chosen" : "equal";
      return { verdict, text: one.more || "", where: [...new Set(where)] };
    }
    missed.push([fails.length, fails[0]]);
  }
  missed.sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : 1));
  const problems = cases.filter((one) => "problem" in one);
  const why = missed.length ? missed[0][1] : problems[0].problem;
  return { verdict: "not said", text: why, where: [] };
}

function differs(proofs, wrong, question) {
  const fails = wrong.map((one) => one.where.filter((i) => question.fails[i]));
  let n = 0;
  fails.forEach((those, i) => { if (those.length < fails[n].length) n = i; });
  let text = Object.entries(wrong[n].differs).map(([role, left]) => `${role} ${left}`).join("; ");
  if (question.zero(wrong[n].zero)) text += ", which is 0 at these sizes, not at all sizes";
  const elsewhere = fails[n].map((i) => proofs.conditions[i].says || proofs.conditions[i].test);
  if (elsewhere.length) text += ` where ${elsewhere.join("; ")}, which is not so here`;
  return { verdict: "differs", text, where: [] };
}

// What says most of several codes: most that is equal, then fewest conditions, then the plainest.
function telling(candidate) {
  const all = Object.values(candidate.said);
  const where = new Set(all.flatMap((one) => one.where));
  return [all.filter((one) => one.verdict === "equal").length, -where.size, -candidate.name.length];
}

function better(a, b) {
  const [x, y] = [telling(a), telling(b)];
  const i = x.findIndex((value, place) => value !== y[place]);
  return i >= 0 && x[i] > y[i] ? a : b;
}

function proofsOf(model, v, totals) {
  if (model.proofs === null) return {};
  const question = asked(model, v);
  const found = {};
  for (const [side, candidates] of Object.entries(model.proofs.sides)) {
    if (candidates.length === 0) continue;
    const said = candidates.map((one) => ({
      name: one.name,
      said: Object.fromEntries(Object.entries(one.cases).map(([quantity, cases]) => [quantity,
        saidOf(model.proofs, cases, question, totals[quantity], question.form(quantity))])),
    }));
    const best = said.reduce((one, other) => better(other, one));
    const isOther = side !== "reference" && model.ownType !== null && best.name !== model.ownType;
    const shown = Object.values(best.said).some((one) => ["equal", "chosen"].includes(one.verdict));
    if (shown || !isOther) found[side] = best;
  }
  return found;
}

function small(model, v) {
  const names = { batch_size: "B", seq_len: "S", source_len: "S_e" };
  const place = (one) => model.order.indexOf(one.name); // as Python lists them
  return [...model.sizes].sort((a, b) => place(a) - place(b))
    .filter((one) => one.name !== "moe_every" && one.name !== "prefix_len" && v[one.name] < model.from)
    .map((one) => `${names[one.name] || one.name} = ${v[one.name]}`);
}

function domain(model, where, v) {
  const isNumber = (text) => /^[A-Za-z_]\w* = \d+$/.test(text);
  const held = [...new Set([...small(model, v), ...where.filter(isNumber)])];
  const rest = where.filter((text) => !held.includes(text));
  const start = held.length ? `${held.join(", ")} and all other sizes` : "all sizes";
  return `${start} from ${model.from}${rest.length ? `, where ${rest.join("; ")}` : ""}`;
}

// ---- everything at one setting ----

function evaluate(model, texts) {
  const { problem, v } = numbersOf(model, texts);
  if (problem) return { problem };
  const figures = {}, totals = {};
  for (const { name, parts } of model.quantities) {
    const values = parts === null ? null : parts.map((part) => part.value(v));
    totals[name] = values === null ? null : values.reduce((a, b) => a + b, 0n);
    figures[name] = values === null ? null : { total: totals[name], parts: values, said: {} };
  }
  for (const [side, one] of Object.entries(proofsOf(model, v, totals))) {
    for (const [name, said] of Object.entries(one.said)) {
      figures[name].said[side] = { name: one.name, ...said };
    }
  }
  return { v, figures, warnings: warningsOf(model, v) };
}

function startOf(model) {
  const texts = Object.fromEntries(model.sizes.map((one) => [one.name, String(one.number)]));
  texts.dtype = model.dtype;
  return texts;
}

// ---- numbers as text, rounded on whole numbers, half to even ----

function grouped(n) { return String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ","); }

function nearest(above, below) {
  const quotient = above / below, twice = 2n * (above % below);
  return quotient + (twice > below || (twice === below && quotient % 2n === 1n) ? 1n : 0n);
}

function inUnits(n, base, units, space) {
  let power = 0, divisor = 1n;
  if (n < base) return `${n}${space}${units[0]}`;
  const fixed = base === 1024n ? 2 : null; // bytes have two decimals, all else three digits
  for (;;) {
    const whole = nearest(n, divisor);
    const digits = fixed !== null ? fixed : power === 0 ? 0 : Math.max(0, 3 - String(n / divisor).length);
    const scaled = nearest(n * 10n ** BigInt(digits), divisor);
    const text = scaled.toString().padStart(digits + 1, "0");
    const overflow = scaled >= base * 10n ** BigInt(digits);
    if ((whole >= base || overflow) && power < units.length - 1) { power += 1; divisor *= base; continue; }
    const again = fixed === null && power > 0 && text.length > 3 && digits > 0
      ? nearest(n * 10n ** BigInt(digits - 1), divisor).toString() : null;
    const shown = again === null ? text : again;
    const places = again === null ? digits : digits - 1;
    const cut = shown.length - places;
    return (places ? `${shown.slice(0, cut)}.${shown.slice(cut)}` : shown) + space + units[power];
  }
}

const FLOPS = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP", "YFLOP"];
function rounded(quantity, n) {
  if (quantity.endsWith("bytes")) return inUnits(n, 1024n, ["B", "KiB", "MiB", "GiB", "TiB"], " ");
  if (quantity.endsWith("flops")) return inUnits(n, 1000n, FLOPS, " ");
  return inUnits(n, 1000n, ["", "K", "M", "B", "T"], "");
}

function share(part, whole) {
  if (whole === 0n) return "n/a";
  if (part === 0n || part === whole) return part ? "100 %" : "0 %";
  const tenths = nearest(part * 1000n, whole);
  if (tenths === 0n) return "<0.1 %";
  if (tenths === 1000n) return ">99.9 %";
  return `${tenths / 10n}.${tenths % 10n} %`;
}

// ---- the address: #B=3&S=77&d=512 of the first model, 2.B=3 of the second ----

function readHash(hash) {
  const settings = models.map(startOf);
  const wrong = [];
  for (const item of hash.replace(/^#/, "").split("&").filter((text) => text)) {
    if (/^t\d+$/.test(item)) continue; // a model's heading, from the list of models
    const [key, ...rest] = item.split("=");
    const found = /^(?:(\d+)\.)?(.+)$/.exec(key) || ["", undefined, ""];
    const model = models[Number(found[1] || 1) - 1];
    const size = model && model.sizes.find((one) => one.letter === found[2] || one.name === found[2]);
    if (!model || (!size && found[2] !== "dtype")) { wrong.push(item); continue; }
    let text = rest.join("=");
    try { text = decodeURIComponent(text); } catch { /* as it is: it is no number, and said so */ }
    settings[models.indexOf(model)][size ? size.name : "dtype"] = text;
  }
  return { settings, wrong };
}

function writeHash(settings) {
  const items = [];
  models.forEach((model, i) => {
    const start = startOf(model), before = i ? `${i + 1}.` : "";
    for (const size of model.sizes) {
      const text = settings[i][size.name];
      if (text !== start[size.name]) items.push(`${before}${size.letter}=${encodeURIComponent(text)}`);
    }
    if (settings[i].dtype !== start.dtype) items.push(`${before}dtype=${settings[i].dtype}`);
  });
  return items.length ? `#${items.join("&")}` : "#";
}

// ---- the page ----

function made(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
}

function farthest(size) {
  const wide = Number(size.number) * 4;
  return String(Math.min(Math.max(wide, 16), Number(size.most)));
}

function controls(model, i, onInput) {
  const inputs = {};
  const row = (size) => {
    const id = `m${i + 1}-${size.name}`;
    const number = made("input", { id, type: "text", inputmode: "numeric", autocomplete: "off",
      spellcheck: "false", name: size.name });
    const slider = made("input", { type: "range", min: String(size.least), max: farthest(size),
      step: "1", "aria-label": `${size.name}, ${say("slider")}` });
    number.addEventListener("input", () => onInput(size.name, number.value, "number"));
    slider.addEventListener("input", () => onInput(size.name, slider.value, "slider"));
    inputs[size.name] = { number, slider };
    const label = made("label", { for: id, title: size.meaning }, made("i", {}, size.letter), " ",
      size.name);
    return made("div", { class: "size" }, label, number, slider);
  };
  const runs = model.sizes.filter((one) => model.runNames.includes(one.name));
  const rest = model.sizes.filter((one) => !model.runNames.includes(one.name));
  const choice = made("select", { id: `m${i + 1}-dtype` },
    ...Object.entries(model.dtypes).map(([name, bytes]) =>
      made("option", { value: name }, `${name}: ${bytes} B`)));
  choice.addEventListener("input", () => onInput("dtype", choice.value, "number"));
  inputs.dtype = { number: choice };
  const dtype = made("div", { class: "size" },
    made("label", { for: `m${i + 1}-dtype` }, made("i", {}, "c"), " dtype"), choice);
  const reset = made("button", { type: "button" }, say("the model's own sizes"));
  reset.addEventListener("click", () => onInput(null, null, "reset"));
  const derived = made("p", { class: "derived" });
  const element = made("div", { class: "controls" },
    made("fieldset", {}, made("legend", {}, say("what is run")), ...runs.map(row), dtype),
    made("fieldset", {}, made("legend", {}, say("sizes of the model")), ...rest.map(row), derived, reset));
  return { element, inputs, derived };
}

function card(quantity) {
  const total = made("output", { class: "total" });
  const about = made("span", { class: "rounded" });
  const proof = made("div", { class: "proof" });
  const rows = (quantity.parts || []).map((part) => {
    const value = made("td", { class: "number" }), percent = made("td", { class: "number" });
    const bar = made("div", { class: "bar" });
    const row = made("tr", {}, made("th", { scope: "row" }, say(part.role)),
      made("td", { class: "form" }, part.letters), value, percent,
      made("td", { class: "bars" }, bar));
    return { row, value, percent, bar };
  });
  const head = made("tr", {}, ...["part", "closed form", "value", "share", ""].map((text) =>
    made("th", { scope: "col" }, say(text))));
  const table = made("table", {}, made("thead", {}, head), made("tbody", {}, ...rows.map((r) => r.row)));
  const none = quantity.parts === null ? "an encoder has no decode step"
    : rows.length ? null : "nothing is kept: 0 at every setting";
  const element = made("section", { class: "card", "data-quantity": quantity.name },
    made("h3", {}, quantity.name, " ", total, " ", about),
    made("p", { class: "meaning" }, quantity.meaning),
    none === null ? made("div", { class: "scroll" }, table) : made("p", {}, say(none)), proof);
  return { element, total, about, proof, rows };
}

function proofLines(model, quantity, said, v) {
  if (model.proofs === null) {
    return [made("p", {}, made("b", { class: "tag no" }, say("not proven")), ` ${model.unproven}`)];
  }
  const whose = (side, name) => (side === "reference" ? "our reference modules"
    : `the code of ${name} in transformers ${model.proofs.transformers}`);
  const lines = Object.entries(said).map(([side, one]) => {
    const code = whose(side, one.name);
    const told = {
      equal: ["proven", "yes", `equal to ${code}, for ${domain(model, one.where, v)}`],
      chosen: ["proven, runs more", "yes", `counts the experts that a token chose, and is equal to ` +
        `${code} for them; that code runs ${one.text} more FLOPs, on experts that it did not ` +
        `choose; for ${domain(model, one.where, v)}`],
      differs: ["differs", "no", `the formula less ${code} is ${one.text}`],
      "not said": ["not proven", "no", `against ${code}: ${one.text}`],
      "other figure": ["not proven", "no", one.text],
    }[one.verdict];
    return made("p", {}, made("b", { class: `tag ${told[1]}` }, say(told[0])), ` ${told[2]}`);
  });
  return lines.length ? lines : [made("p", {}, made("b", { class: "tag no" }, say("not proven")),
    " nothing is recorded of this quantity")];
}

function show(model, cards, found) {
  const parts = model.quantities.map((quantity) => [quantity, cards[quantity.name]]);
  for (const [quantity, one] of parts) {
    const figure = found.problem ? undefined : found.figures[quantity.name];
    const blank = !figure;
    one.total.textContent = blank ? "–" : grouped(figure.total);
    one.about.textContent = blank || !figure.total ? "" : rounded(quantity.name, figure.total);
    one.rows.forEach((row, i) => {
      row.value.textContent = blank ? "–" : grouped(figure.parts[i]);
      row.percent.textContent = blank ? "" : share(figure.parts[i], figure.total);
      row.bar.style.width = blank || !figure.total ? "0"
        : `${Number((figure.parts[i] * 1000n) / figure.total) / 10}%`;
    });
    one.proof.replaceChildren(...(blank ? [] : proofLines(model, quantity.name, figure.said, found.v)));
  }
}

function mount(model, i, settings, changedSettings) {
  const place = document.getElementById(`m${i + 1}`);
  const alert = made("p", { class: "problem", role: "alert" });
  const warnings = made("div", { class: "warnings" });
  const cards = Object.fromEntries(model.quantities.map((one) => [one.name, card(one)]));
  const refresh = (from) => {
    const texts = settings[i];
    for (const [name, { number, slider }] of Object.entries(control.inputs)) {
      if (from !== "number" || number.value !== texts[name]) number.value = texts[name];
      const whole = slider && wholeNumber(texts[name], true);
      if (whole !== null && whole !== undefined) slider.value = String(whole);
    }
    const found = evaluate(model, texts);
    alert.textContent = found.problem || "";
    alert.hidden = !found.problem;
    warnings.replaceChildren(...(found.warnings || []).map((text) => made("p", {}, text)));
    control.derived.textContent = model.derived.map((one) => `${one.letter} ${one.name}: ` +
      `${found.problem ? "–" : found.v[one.name]}, ${one.meaning}`).join("; ");
    show(model, cards, found);
  };
  const control = controls(model, i, (name, text, from) => {
    if (from === "reset") settings[i] = startOf(model); else settings[i][name] = text;
    refresh(from);
    changedSettings();
  });
  place.append(control.element, made("div", {}, alert, warnings),
    ...Object.values(cards).map((one) => one.element));
  refresh("start");
  return refresh;
}

function start() {
  const said = document.getElementById("address");
  const { settings, wrong } = readHash(location.hash);
  const tell = (items) => {
    said.textContent = items.length
      ? `the address says what no model here has: ${items.join(", ")}; left out` : "";
    said.hidden = !items.length;
  };
  const keep = () => history.replaceState(null, "", writeHash(settings));
  const refreshes = models.map((model, i) => mount(model, i, settings, keep));
  tell(wrong);
  for (const link of document.querySelectorAll("nav a")) {
    link.addEventListener("click", (event) => { // the address is for the sizes
      event.preventDefault();
      document.querySelector(link.getAttribute("href")).scrollIntoView();
    });
  }
  window.addEventListener("hashchange", () => {
    const again = readHash(location.hash);
    settings.splice(0, settings.length, ...again.settings);
    tell(again.wrong);
    refreshes.forEach((refresh) => refresh("hash"));
  });
}

start();
