// State: the view, the search, the selected record; and its listeners.

const FIELDS_AFTER_MS = 120;

class App {
	constructor(report) {
		this.report = report;
		const margin = report.span ? report.span * 0.01 : LEAST_SPAN / 2;
		this.whole = { from: -margin, to: report.span + margin };
		this.view = this.whole;
		this.rows = null;
		this.rest = report.rest; // null with search terms, which cannot be applied to it
		this.hidden = new Set();
		this.terms = [];
		this.selected = -1;
		this.searchJob = 0;
		this.lossByRow = new Map(report.losses.map((loss) => [loss.row, loss]));
		this.loss = -1;
		showFacts(report);
		showEvents(this);
		showLosses(this);
		this.timeline = new Timeline(this);
		this.table = new Table(this);
		this.cards = new Cards(this);
		this.listen();
		this.changed();
	}

	lossAt(row) {
		return this.lossByRow.get(row);
	}

	colorName(color) {
		const { byCount } = this.report;
		return color < COLORS - 1 || byCount.length === COLORS ? plain(byCount[color].label) : "other events";
	}

	// Number of records without a row in view; bins partly in view count fully.
	restInView() {
		let found = 0;
		this.rest?.each(this.view.from, this.view.to, this.hidden, (i) => (found += this.rest.number[i]));
		return found;
	}

	setView(from, to, keepSpan = false) {
		const { whole } = this;
		const most = whole.to - whole.from;
		const span = Math.max(Math.min(to - from, most), Math.min(LEAST_SPAN, most));
		if (!keepSpan && span !== to - from) from = (from + to - span) / 2;
		from = Math.max(whole.from, Math.min(from, whole.to - span));
		if (from === this.view.from && from + span === this.view.to) return;
		this.view = { from, to: from + span };
		this.changed();
	}

	// The view or the rows have changed.
	changed() {
		this.timeline.refresh();
		const { view, rows, report } = this;
		const begin = report.rowAt(view.from, rows);
		const end = report.rowAt(view.to, rows);
		this.table.show(rows, begin, end - begin);
		const others = this.restInView();
		const cut = others && (this.rest.begin < view.from || this.rest.end > view.to) ? "≤ " : "";
		document.getElementById("records-count").textContent =
			`${count(end - begin)} in view${others ? `, ${cut}${count(others)} only in the timeline` : ""}`;
		const step = (view.to - view.from) / 1000;
		const { dataset } = document.getElementById("timeline");
		dataset.from = view.from;
		dataset.to = view.to;
		document.getElementById("range-text").textContent =
			`${offset(Math.max(view.from, 0), step)} to ${offset(Math.min(view.to, report.span), step)}`
			+ ` · ${duration(Math.min(view.to, report.span) - Math.max(view.from, 0))}`
			+ ` · ${cut}${plural(end - begin + others, "record")}`;
		clearTimeout(this.later);
		this.later = setTimeout(() => this.cards.refresh(), FIELDS_AFTER_MS);
	}

	async search() {
		const input = document.getElementById("search");
		const result = document.getElementById("search-result");
		const job = ++this.searchJob;
		let rows;
		try {
			this.terms = parseSearch(input.value);
			checkFields(this.report, this.terms);
			result.textContent = this.terms.length ? "…" : "";
			rows = await findRows(this.report, this.terms, this.hidden, () => job !== this.searchJob);
			input.removeAttribute("aria-invalid");
		} catch (error) {
			if (!(error instanceof SearchError)) throw error;
			input.setAttribute("aria-invalid", "true");
			result.textContent = error.message;
			result.title = error.message;
			return;
		}
		if (rows === undefined) return;
		const rest = this.terms.length ? null : this.report.rest;
		const counts = await this.laneCounts(rows, rest);
		if (job !== this.searchJob) return;
		this.rows = rows;
		this.rest = rest;
		this.timeline.layOut(counts);
		const all = `${count(this.report.count)}${this.report.rest ? " in the table" : ""}`;
		result.textContent = this.terms.length ? `${count(rows.length)} of ${all}` : "";
		document.getElementById("events-all").hidden = !this.hidden.size;
		this.changed();
	}

	async laneCounts(rows, rest) {
		const { report } = this;
		if (!rows) return report.lanes.map((lane) => lane.count);
		const counts = new Float64Array(report.lanes.length);
		rest?.each(-Infinity, Infinity, this.hidden, (i) => (counts[rest.lane[i]] += rest.number[i]));
		await inSlices(0, rows.length, (from, to) => {
			for (let n = from; n < to; n++) counts[report.lane[rows[n]]]++;
		});
		return counts;
	}

	toggleTerm(term) {
		const input = document.getElementById("search");
		const terms = input.value.split(/\s+/).filter(Boolean);
		input.value = terms.includes(term) ? terms.filter((t) => t !== term).join(" ") : [...terms, term].join(" ");
		this.search();
	}

	hide(event, hidden) {
		if (hidden) this.hidden.add(event);
		else this.hidden.delete(event);
		this.search();
	}

	// Show only this event; all if it is the only one already, or -1
	only(event) {
		const { events } = this.report;
		const already = this.hidden.size === events.length - 1 && !this.hidden.has(event);
		this.hidden = new Set(event < 0 || already ? [] : events.map((e) => e.number).filter((n) => n !== event));
		for (const [number, { box }] of this.eventCounts) box.checked = !this.hidden.has(number);
		this.search();
	}

	select(row, reveal = true) {
		this.selected = row;
		const at = this.report.time[row];
		if (at < this.view.from || at > this.view.to) {
			const half = (this.view.to - this.view.from) / 2;
			this.setView(at - half, at + half, true);
		}
		if (reveal) this.table.reveal(row);
		else this.table.render();
		this.timeline.reveal(row);
		this.timeline.paintSoon();
		showRecord(this, row);
	}

	step(by) {
		const { rows, report } = this;
		const size = rows ? rows.length : report.count;
		if (!size) return;
		let at;
		if (this.selected < 0) at = report.rowAt(this.view.from, rows) - (by > 0 ? 1 : 0);
		else if (!rows) at = this.selected;
		else {
			at = firstOf(rows.length, (n) => rows[n] >= this.selected);
			if (by > 0 && rows[at] !== this.selected) at--;
		}
		at = Math.max(0, Math.min(at + by, size - 1));
		this.select(rows ? rows[at] : at);
	}

	showLoss(n) {
		this.loss = n;
		const { report } = this;
		const { row } = report.losses[n];
		const from = report.time[Math.max(row - 1, 0)];
		const around = Math.max((report.time[row] - from) * 4, this.report.span / 500, LEAST_SPAN);
		this.setView(from - around, report.time[row] + around);
		this.select(row);
	}

	listen() {
		const input = document.getElementById("search");
		let typing;
		input.addEventListener("input", () => {
			clearTimeout(typing);
			typing = setTimeout(() => this.search(), 150);
		});
		document.getElementById("search-form").addEventListener("submit", (event) => {
			event.preventDefault();
			this.step(1);
		});
		const { timeline } = this;
		const part = 0.3;
		const help = document.getElementById("help");
		const doing = {
			"pan-left": () => timeline.pan(-part * timeline.width),
			"pan-right": () => timeline.pan(part * timeline.width),
			"zoom-in": () => timeline.zoom(0.6),
			"zoom-out": () => timeline.zoom(1 / 0.6),
			"zoom-all": () => this.setView(this.whole.from, this.whole.to),
			"help-button": () => help.showModal(),
			theme: () => this.nextTheme(),
		};
		for (const [id, work] of Object.entries(doing)) document.getElementById(id).addEventListener("click", work);
		const keys = {
			a: "pan-left", d: "pan-right", w: "zoom-in", "+": "zoom-in", "=": "zoom-in", s: "zoom-out",
			"-": "zoom-out", 0: "zoom-all", "?": "help-button",
		};
		document.addEventListener("keydown", (event) => {
			if (event.ctrlKey || event.altKey || event.metaKey || help.open) return;
			if (event.target === input) {
				if (event.key !== "Escape") return;
				event.preventDefault(); // the default would clear it
				input.blur();
				return;
			}
			if (event.target.tagName === "SELECT") return;
			if (event.key in keys) doing[keys[event.key]]();
			else if (event.key === "/") input.focus();
			else if (event.key === ".") this.step(1);
			else if (event.key === ",") this.step(-1);
			else if (event.key === "l" && this.report.losses.length)
				this.showLoss((this.loss + 1) % this.report.losses.length);
			else return;
			event.preventDefault();
		});
		matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolor());
	}

	nextTheme() {
		const root = document.documentElement;
		const next = { "": "dark", dark: "light", light: "" }[root.className];
		root.className = next;
		document.getElementById("theme").setAttribute("aria-label", `Colours: ${next || "as the system has them"}`);
		this.recolor();
	}

	recolor() {
		this.timeline.readColors();
		this.cards.refresh();
	}
}

async function open() {
	const script = document.getElementById("head");
	const report = new Report(JSON.parse(script.textContent));
	script.remove();
	clockInNs = report.head.in_ns;
	await report.load();
	const app = new App(report);
	document.body.dataset.ready = "true";
	performance.mark("ready");
	for (const event of report.byCount) await event.load();
	await app.timeline.showSpans();
	showNotices(report);
	document.body.dataset.complete = "true";
}

open().catch((error) => {
	const notice = document.getElementById("notice");
	notice.textContent = `This page cannot be shown: ${error.message}. It needs a browser of 2023 or later.`;
	notice.hidden = false;
	throw error;
});
