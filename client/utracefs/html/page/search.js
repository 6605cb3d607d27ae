// The search: terms separated by blanks; a record must match all.
//
//   word            in the event's or thread's name or any text field; a number: also a pid, tid or field
//   field=value     also != < <= > >= and ~ (contains); event, comm, pid, tid, cpu, instance and time
//                   (in seconds of the clock) stand for themselves
//   "a b"           a term with blanks
//   -term           must not match
//
// A term is compiled, for each event, into a test of a row; each distinct text is tested once.

class SearchError extends Error {}

const QUOTED = /"(?:[^"\\]|\\.)*"/.source;
const WORD = /((?:[^\s"<>=!~]|!(?!=))*)/.source;
const OPERATOR = /(!=|<=|>=|=|<|>|~)/.source;
const TERM = new RegExp(`(-?)${WORD}(?:${OPERATOR}(${QUOTED}|\\S*)|(${QUOTED}))?`, "y");

function parseSearch(text) {
	const terms = [];
	let at = 0;
	for (;;) {
		while (/\s/.test(text[at] || "")) at++;
		if (at >= text.length) return terms;
		TERM.lastIndex = at;
		const found = TERM.exec(text);
		if (!found || !found[0]) throw new SearchError(`cannot read: ${text.slice(at)}`);
		at += found[0].length;
		const [, minus, word, operator, value, quoted] = found;
		if (operator) {
			if (!word) throw new SearchError(`what is to be ${operator} ${value}? field${operator}value`);
			if (!value) throw new SearchError(`${word} ${operator} what? Without a blank: ${word}${operator}value`);
			terms.push({ not: !!minus, field: word, operator, value: unquoted(value), found: new Map() });
		} else {
			const bare = quoted === undefined ? word : word + unquoted(quoted);
			if (!bare) throw new SearchError("- what?");
			terms.push({ not: !!minus, field: "", operator: "~", value: bare, found: new Map() });
		}
	}
}

function unquoted(text) {
	return text[0] === '"' ? text.slice(1, -1).replace(/\\(.)/g, "$1") : text;
}

function integer(text) {
	return /^[+-]?(\d+|0x[\da-f]+)$/i.test(text)
		? text[0] === "-" ? -BigInt(text.slice(1)) : BigInt(text.replace("+", "")) : null;
}

function seconds(text) {
	const found = /^(\d+)(?:\.(\d{1,9}))?$/.exec(text);
	if (!found) throw new SearchError(`time is in seconds, as the table has it; not ${text}`);
	return BigInt(found[1]) * 1000000000n + BigInt((found[2] || "").padEnd(9, "0"));
}

function compares(operator, a, b) {
	switch (operator) {
		case "=": return a == b;
		case "!=": return a != b;
		case "<": return a < b;
		case "<=": return a <= b;
		case ">": return a > b;
		default: return a >= b;
	}
}

// A test of texts, or null if the operator needs numbers
function textTest(operator, value) {
	if (operator === "=") return (text) => text === value;
	if (operator === "!=") return (text) => text !== value;
	const wanted = value.toLowerCase();
	return operator === "~" ? (text) => text.toLowerCase().includes(wanted) : null;
}

// Results of a test for many texts, as bytes
async function passing(texts, test) {
	const found = new Uint8Array(texts.length);
	await inSlices(0, texts.length, (from, to) => {
		for (let i = from; i < to; i++) found[i] = test(texts[i]) ? 1 : 0;
	});
	return found;
}

// row => boolean for the records of an event; true or false if it is the same for all
async function termTest(report, event, term) {
	const { field, operator, value } = term;
	const number = integer(value);
	const tests = [];
	// Results common to all events are computed once: by name in `term.found`.
	const addTexts = async (texts, numberAt, name = "") => {
		const test = textTest(operator, value);
		if (!test) return;
		const found = (name && term.found.get(name)) || await passing(texts, test);
		if (name) term.found.set(name, found);
		if (found.includes(1)) tests.push((row) => found[numberAt(row)] === 1);
	};
	const addNumbers = (column, at, to = number) => {
		if (to === null) return;
		const by = operator === "~" ? "=" : operator;
		const plainTo = Number(to);
		if (column.small && Number.isSafeInteger(plainTo))
			tests.push((row) => compares(by, column.at(at(row)), plainTo));
		else tests.push((row) => compares(by, BigInt(column.at(at(row))), to));
	};
	const { task, cpu, instance } = report.columns;
	const taskOf = (row) => task.index(row);
	const addIds = async (name) => {
		if (number === null) return;
		const by = operator === "~" ? "=" : operator;
		const found = term.found.get(name)
			|| await passing(report.tasks, (t) => compares(by, BigInt(t[name]), number));
		term.found.set(name, found);
		if (found.includes(1)) tests.push((row) => found[taskOf(row)] === 1);
	};
	const own = event.fields.filter((f) => !field || f.name === field);
	for (const f of own) {
		if (f.isText) await addTexts(f.texts, (row) => f.column.index(report.local[row]));
		else addNumbers(f.column, (row) => report.local[row]);
	}
	if (!field || (field === "event" && !own.length)) {
		const names = [event.name, `${event.system}:${event.name}`];
		const test = textTest(operator, value);
		if (test && (operator === "!=" ? names.every(test) : names.some(test))) return true;
	}
	if (!field || (field === "comm" && !own.length))
		await addTexts(report.comms, taskOf, "comm");
	if (!field || (field === "pid" && !own.length)) await addIds("pid");
	if (!field || (field === "tid" && !own.length)) await addIds("tid");
	if (field === "cpu" && !own.length) addNumbers(cpu, (row) => row);
	if (field === "instance" && !own.length)
		await addTexts(report.head.instances, (row) => instance.index(row), "instance");
	if (field === "time" && !own.length) {
		const to = seconds(value);
		tests.push((row) => compares(operator === "~" ? "=" : operator, report.timeOf(row), to));
	}
	if (!tests.length) return false;
	return tests.length === 1 ? tests[0] : (row) => tests.some((test) => test(row));
}

const WORDS = new Set(["event", "comm", "pid", "tid", "cpu", "instance", "time"]);

function checkFields(report, terms) {
	for (const { field, operator, value } of terms) {
		if (!field) continue;
		const own = report.events.flatMap((event) => event.fields.filter((f) => f.name === field));
		if (!own.length && !WORDS.has(field)) throw new SearchError(`no event has a field ${field}`);
		const isNumber = own.some((f) => !f.isText) || ["pid", "tid", "cpu"].includes(field);
		const isText = own.some((f) => f.isText) || ["event", "comm", "instance"].includes(field);
		if (!isText && isNumber && integer(value) === null)
			throw new SearchError(`${field} is a number, ${value} is not`);
		if (!isNumber && isText && !textTest(operator, value))
			throw new SearchError(`${field} is text: = != or ~ (contains), not ${operator}`);
	}
}

// The rows that match all terms, without hidden events: Uint32Array, null for all; undefined when stopped.
async function findRows(report, terms, hidden, stopped) {
	if (!terms.length && !hidden.size) return null;
	const tests = [];
	for (const event of report.events) {
		let test = hidden.has(event.number) ? false : true;
		for (const term of terms) {
			if (test === false) break;
			if (!event.ready) await event.load();
			let one = await termTest(report, event, term);
			if (stopped()) return undefined;
			if (term.not) one = typeof one === "boolean" ? !one : ((positive) => (row) => !positive(row))(one);
			if (one === false || test === true) test = one;
			else if (one !== true) test = ((a, b) => (row) => a(row) && b(row))(test, one);
		}
		tests.push(test);
	}
	const found = new Uint32Array(report.count);
	let size = 0;
	const done = await inSlices(0, report.count, (from, to) => {
		for (let row = from; row < to; row++) {
			const test = tests[report.event[row]];
			if (test === true || (test !== false && test(row))) found[size++] = row;
		}
	}, stopped);
	return done ? found.slice(0, size) : undefined;
}
