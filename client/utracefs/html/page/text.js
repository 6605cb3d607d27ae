// Formatting for people: numbers, times, and texts of a recording, which may contain anything and are
// inserted into the page only as text nodes.

const grouped = new Intl.NumberFormat("en-US");

// Invisible characters, direction marks, and the surrogates that stand for bytes that are not UTF-8.
const HIDDEN = new RegExp(
	"[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\uffff]"
	+ "|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]", "g");
const NAMED = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function escapeOf(character) {
	const code = character.charCodeAt(0);
	if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code & 0xff).toString(16)}`;
	if (code < 0x100) return NAMED[character] || `\\x${code.toString(16).padStart(2, "0")}`;
	return `\\u${code.toString(16).padStart(4, "0")}`;
}

// One line, for canvas, labels and tips.
function plain(text) {
	return text.replace(HIDDEN, escapeOf);
}

// Adds a text to an element, with such characters as marked escapes.
function addText(element, text) {
	let at = 0;
	for (const found of text.matchAll(HIDDEN)) {
		if (found.index > at) element.append(text.slice(at, found.index));
		element.append(make("span", "escape", escapeOf(found[0])));
		at = found.index + 1;
	}
	if (at < text.length) element.append(at ? text.slice(at) : text);
	return element;
}

function make(tag, className = "", text = "", attributes = {}) {
	const element = document.createElement(tag);
	if (className) element.className = className;
	if (text) element.append(text);
	for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
	return element;
}

function count(number) {
	return grouped.format(number);
}

function plural(number, word) {
	return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

// 1.23 k, 4.5 M: at most four characters and a unit
function brief(number) {
	const size = Math.abs(number);
	for (const [unit, name] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
		if (size >= unit * 0.9995) return `${digits(number / unit)} ${name}`;
	return digits(number);
}

function digits(number) {
	const size = Math.abs(number);
	if (size && size < 0.01) return number.toExponential(1);
	return String(Number(number.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)));
}

let clockInNs = true;

// A duration
function duration(ns) {
	if (!clockInNs) return `${count(Math.round(ns))} ticks`;
	const size = Math.abs(ns);
	if (size >= 3600e9) return `${digits(ns / 3600e9)} h`;
	if (size >= 120e9) return `${digits(ns / 60e9)} min`;
	if (size >= 1e9) return `${digits(ns / 1e9)} s`;
	if (size >= 1e6) return `${digits(ns / 1e6)} ms`;
	if (size >= 1e3) return `${digits(ns / 1e3)} µs`;
	return `${digits(ns)} ns`;
}

// A time after the first record, with the digits needed for marks `step` apart
function offset(ns, step) {
	const sign = ns < 0 ? "−" : "+";
	if (!clockInNs) return `${sign}${count(Math.abs(Math.round(ns)))}`;
	const [unit, name] = step >= 1e9 || Math.abs(ns) >= 10e9 ? [1e9, "s"] : Math.abs(ns) >= 10e6 || step >= 1e6
		? [1e6, "ms"] : [1e3, "µs"];
	const places = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
	return `${sign}${(Math.abs(ns) / unit).toFixed(Math.min(places, 9))} ${name}`;
}

// In the format of `utracefs report -t`: seconds with nine digits
function clockText(ns) {
	if (!clockInNs) return String(ns);
	const text = String(ns).padStart(10, "0");
	return `${text.slice(0, -9)}.${text.slice(-9)}`;
}

// The time of day of a time of the recording, both in nanoseconds
function timeOfDay(ns, unixOffset) {
	const unix = ns + BigInt(unixOffset);
	const part = ((unix % 1000000000n) + 1000000000n) % 1000000000n;
	const seconds = new Date(Number((unix - part) / 1000000n)).toISOString();
	return `${seconds.slice(0, 19).replace("T", " ")}.${String(part).padStart(9, "0")} UTC`;
}

function laneName(lane) {
	return `${plain(lane.comm)}-${lane.tid}`;
}

function valueText(value) {
	return typeof value === "string" ? value : String(value);
}
