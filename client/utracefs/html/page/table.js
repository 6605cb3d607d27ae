// The table of the matching records in view. Only visible rows are in the document.

const ROW_HEIGHT = 22;
const MOST_HEIGHT = 8e6; // of an element, in points; above, the scrollbar is scaled
const CELL_TEXT = 200;

class Table {
	constructor(app) {
		this.app = app;
		this.report = app.report;
		this.grid = document.getElementById("grid");
		this.empty = document.getElementById("grid-empty");
		const longest = this.report.count ? clockText(this.report.timeOf(this.report.count - 1)).length : 4;
		this.grid.style.setProperty("--time", `${Math.ceil(longest * 6.95)}px`);
		this.scroller = document.getElementById("grid-scroll");
		this.body = document.getElementById("grid-rows");
		this.all = document.getElementById("grid-all");
		this.rows = null;
		this.begin = 0;
		this.count = 0;
		this.top = 0; // the first visible row, with a fraction
		this.scroller.addEventListener("scroll", () => this.scrolled());
		this.scroller.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
		this.grid.addEventListener("keydown", (event) => this.key(event));
		this.body.addEventListener("click", (event) => {
			const row = event.target.closest("[role=row]");
			if (row) this.app.select(Number(row.dataset.row), false);
		});
		new ResizeObserver(() => this.show(this.rows, this.begin, this.count)).observe(this.scroller);
	}

	// rows: as App.rows; begin, count: the part in view
	show(rows, begin, count) {
		const before = this.count ? this.rowAt(Math.floor(this.top)) : 0;
		const same = rows === this.rows && begin === this.begin && count === this.count;
		const fraction = this.top % 1;
		this.rows = rows;
		this.begin = begin;
		this.count = count;
		this.seen = this.scroller.clientHeight / ROW_HEIGHT;
		this.height = Math.min(count * ROW_HEIGHT, MOST_HEIGHT);
		this.scaled = count * ROW_HEIGHT > MOST_HEIGHT;
		this.all.style.height = `${this.height}px`;
		this.grid.setAttribute("aria-rowcount", count + 1);
		this.empty.hidden = count > 0;
		if (!count) this.empty.textContent = this.whyEmpty();
		this.scrollTo(same ? this.top : this.placeOf(before) + fraction);
	}

	whyEmpty() {
		if (this.app.restInView()) {
			const { from, to } = this.app.view;
			const at = (time) => clockText(this.report.first + BigInt(Math.floor(Math.max(time, 0))));
			return "The table has no records of these times, the timeline only counts them."
				+ (clockInNs ? ` Write a page of them: --since ${at(from)} --until ${at(to + 1)}` : "");
		}
		if (!this.report.count) {
			const part = this.report.head.selection.length ? "This part of the" : "The";
			return `${part} recording has no records.`;
		}
		if (!this.rows) return "No records between these times. Press 0 to see all of the recording.";
		const all = this.rows.length === 0;
		return `No record ${all ? "" : "between these times "}meets the search and the events that are ticked.`
			+ (all ? "" : " Press 0 to see all of the recording.");
	}

	rowAt(n) {
		return this.rows ? this.rows[this.begin + n] : this.begin + n;
	}

	// Index of the first record at or after `row`
	placeOf(row) {
		return firstOf(this.count, (n) => this.rowAt(n) >= row);
	}

	scrollTo(top) {
		const most = Math.max(this.count - this.seen, 0);
		this.top = Math.max(0, Math.min(top, most));
		const free = this.height - this.scroller.clientHeight;
		const at = this.scaled ? (this.top / most) * free : this.top * ROW_HEIGHT;
		this.set = at;
		this.scroller.scrollTop = at;
		this.render();
	}

	scrolled() {
		const at = this.scroller.scrollTop;
		if (Math.abs(at - this.set) < 1.5) return; // set by us
		const most = Math.max(this.count - this.seen, 0);
		this.set = at;
		this.top = this.scaled ? (at / (this.height - this.scroller.clientHeight)) * most : at / ROW_HEIGHT;
		this.render();
	}

	wheel(event) {
		if (!this.scaled || event.ctrlKey) return;
		event.preventDefault();
		const unit = event.deltaMode === 1 ? ROW_HEIGHT : event.deltaMode === 2 ? this.scroller.clientHeight : 1;
		this.scrollTo(this.top + (event.deltaY * unit) / ROW_HEIGHT);
	}

	key(event) {
		const page = Math.max(Math.floor(this.seen) - 1, 1);
		const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity };
		if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey || !this.count) return;
		event.preventDefault();
		const { selected } = this.app;
		const at = this.placeOf(selected);
		const isHere = selected >= 0 && at < this.count && this.rowAt(at) === selected;
		const from = isHere ? at : Math.floor(this.top) - (steps[event.key] > 0 ? 1 : 0);
		this.app.select(this.rowAt(Math.max(0, Math.min(from + steps[event.key], this.count - 1))));
	}

	// Scrolls as little as needed.
	reveal(row) {
		const at = this.placeOf(row);
		const end = this.top + this.seen;
		if (at < this.top) this.scrollTo(at - (at < this.top - 2 ? 3 : 0));
		else if (at + 1 > end) this.scrollTo(at + 1 - this.seen + (at > end + 1 ? 3 : 0));
		else this.render();
	}

	render() {
		const first = Math.floor(this.top);
		const last = Math.min(first + Math.ceil(this.seen) + 1, this.count);
		const rows = [];
		const missing = new Set();
		for (let n = first; n < last; n++) rows.push(this.row(n, missing));
		this.body.replaceChildren(...rows);
		const { selected } = this.app;
		const shown = rows.find((row) => row.dataset.row === String(selected));
		if (shown) this.grid.setAttribute("aria-activedescendant", shown.id);
		else this.grid.removeAttribute("aria-activedescendant");
		this.grid.setAttribute("aria-busy", missing.size > 0);
		for (const event of missing) event.load().then(() => this.render());
	}

	row(n, missing) {
		const { report } = this;
		const row = this.rowAt(n);
		const event = report.events[report.event[row]];
		const task = report.tasks[report.columns.task.index(row)];
		const element = make("div", n % 2 ? "even" : "", "", {
			role: "row", id: `row-${row}`, "aria-rowindex": n + 2, "aria-selected": row === this.app.selected,
			"data-row": row,
		});
		element.style.top = `${(n - this.top) * ROW_HEIGHT}px`;
		const cell = (className = "") => element.appendChild(make("span", className, "", { role: "gridcell" }));
		cell().append(clockText(report.timeOf(row)));
		cell().append(String(report.columns.cpu.at(row)));
		const thread = cell("ends");
		addText(thread.appendChild(make("span")), task.comm);
		thread.append(make("span", "", `-${task.tid}`));
		const name = cell();
		name.append(make("span", `swatch k${event.color}`));
		addText(name, event.label);
		const fields = cell();
		const loss = this.app.lossAt(row);
		if (loss) {
			element.classList.add("after-loss");
			fields.append(make("span", "loss", `LOST ${loss.lost < 0 ? "some" : count(loss.lost)} `));
		}
		if (event.short) fields.append(make("span", "key", "shorter than the event says"));
		else if (event.broken) fields.append(make("span", "key", `cannot be read: ${event.broken}`));
		else if (!event.ready) missing.add(event);
		else {
			for (const field of event.fields) {
				addText(fields.appendChild(make("span", "key")), `${field.name}`).append("=");
				const value = valueText(field.at(report.local[row]));
				addText(fields, value.length > CELL_TEXT ? `${value.slice(0, CELL_TEXT)}…` : value).append("  ");
			}
		}
		return element;
	}
}
