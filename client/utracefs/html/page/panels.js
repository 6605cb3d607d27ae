// The panels around the timeline: facts, events, losses, the selected record, statistics of fields.

const PLACES_SHOWN = 300;
const TOP_TEXTS = 8;

function showFacts(report) {
	const { head } = report;
	document.getElementById("name").append(plain(head.name));
	document.getElementById("name").title = plain(head.path);
	const facts = document.getElementById("facts");
	const add = (value, what, className = "") => {
		const item = facts.appendChild(make("div", className));
		item.append(make("dt", "", what), make("dd", "", value));
		return item;
	};
	add(count(report.total), report.total === 1 ? "record" : "records");
	add(duration(report.span), "");
	const lost = head.lost_uncounted ? `≥ ${count(BigInt(head.lost))}` : count(BigInt(head.lost));
	if (head.lost !== "0" || head.lost_uncounted) add(lost, "lost", "lost loss");
	else add("nothing", "lost", "lost");
	add(count(report.lanes.length), report.lanes.length === 1 ? "thread" : "threads");
	if (head.clock) add(plain(head.clock), "clock").title = head.format;
	if (head.host) add(plain(head.host), "host");
	if (head.unix_offset !== null) add(timeOfDay(BigInt(head.first), head.unix_offset).slice(0, 19), "UTC");
	showNotices(report);
}

function showNotices(report) {
	const { head, rest } = report;
	const notices = [];
	if (head.broken) notices.push(`Incomplete: ${plain(head.broken)}`);
	if (head.selection.length) notices.push(`A part of the recording: ${plain(head.selection.join("; "))}`);
	if (rest) {
		const last = report.count ? `, up to ${clockText(report.timeOf(report.count - 1))}` : "";
		const part = `${count(report.count)} of ${plural(report.total, "record")}`;
		notices.push(`Table, fields and search have the first ${part}${last}; the timeline counts all.`
			+ " --since, --last, -e, --cpu or -P select others");
	}
	if (head.moved) notices.push(head.moved[0].toUpperCase() + head.moved.slice(1));
	const broken = report.events.filter((event) => event.broken);
	for (const { label, broken: why } of broken)
		notices.push(`Fields of ${plain(label)} cannot be read: ${why}`);
	const notice = document.getElementById("notice");
	notice.hidden = !notices.length;
	notice.textContent = notices.join(". ");
	notice.classList.toggle("calm", !head.broken && !broken.length);
}

function showEvents(app) {
	const list = document.getElementById("events");
	app.eventCounts = new Map();
	for (const event of app.report.byCount) {
		const label = make("label");
		const box = make("input", `k${event.color}`, "", { type: "checkbox" });
		box.checked = true;
		box.addEventListener("change", () => app.hide(event.number, !box.checked));
		const name = addText(make("span", "name"), event.label);
		if (event.short) name.append(" (short)");
		label.title = `${plain(event.system)}:${plain(event.name)}`;
		if (event.short) label.title += ", records that are shorter than it says";
		const number = make("span", "count", count(event.total));
		label.append(box, name, number);
		label.addEventListener("dblclick", (e) => {
			e.preventDefault();
			app.only(event.number);
		});
		list.append(make("li", "", "", {}));
		list.lastChild.append(label);
		app.eventCounts.set(event.number, { box, number });
	}
	if (!app.report.events.length) list.append(make("li", "hint", "No records."));
	document.getElementById("events-all").addEventListener("click", () => app.only(-1));
}

function showLosses(app) {
	const { head, losses } = app.report;
	const panel = document.getElementById("losses");
	const total = BigInt(head.lost);
	if (!total && !head.lost_uncounted) {
		panel.append(make("p", "hint", "None that the recording knows of."));
	} else {
		const where = losses.length ? ` at ${plural(losses.length, "place")}` : "";
		const more = head.lost_uncounted ? ", and more that were not counted" : "";
		panel.append(make("p", "loss", `${plural(total, "record")}${more}${where}`));
		const list = panel.appendChild(make("ul", "places"));
		losses.slice(0, PLACES_SHOWN).forEach((loss, n) => {
			const button = make("button", "", "", { type: "button" });
			const lost = loss.lost < 0 ? "not counted" : count(loss.lost);
			button.append(make("span", "", clockText(app.report.timeOf(loss.row))), make("span", "loss", lost));
			button.title = "before this time; shows the place";
			button.addEventListener("click", () => app.showLoss(n));
			list.appendChild(make("li")).append(button);
		});
		const others = losses.length - PLACES_SHOWN;
		if (others > 0) list.append(make("li", "hint", `and ${plural(others, "place")} more, red in the timeline`));
		const told = losses.reduce((sum, loss) => sum + (loss.lost > 0 ? BigInt(loss.lost) : 0n), 0n);
		if (total > told) list.append(make("li", "", `${count(total - told)} after the last record shown`));
	}
	const table = make("table");
	for (const text of head.stats) {
		let cpu = "";
		for (const line of text.split("\n")) {
			const [name, value] = line.split(/:\s*/, 2);
			if (name === "CPU") cpu = `cpu ${value}, `;
			else if (/overrun|dropped|lost|too large|overwritten/.test(name) && value !== "0" && value !== undefined) {
				const row = table.appendChild(make("tr"));
				row.append(make("th", "", plain(cpu + name)), make("td", "number", plain(value)));
			}
		}
	}
	if (table.childElementCount) panel.append(make("p", "hint", "What the buffers counted:"), table);
}

async function showRecord(app, row) {
	const { report } = app;
	const event = report.events[report.event[row]];
	await event.load();
	if (row !== app.selected) return;
	const task = report.tasks[report.columns.task.index(row)];
	const table = make("table");
	const body = table.appendChild(make("tbody"));
	const add = (to, name, value) => {
		const line = to.appendChild(make("tr"));
		addText(line.appendChild(make("th")), name).title = plain(name);
		return addText(line.appendChild(make("td")), value);
	};
	const name = add(body, "event", `${event.system}:`);
	name.append(make("wbr"));
	addText(name, event.name);
	add(body, "time", clockText(report.timeOf(row)));
	if (report.head.unix_offset !== null) {
		add(body, "time of day", timeOfDay(report.timeOf(row), report.head.unix_offset));
	}
	add(body, "after the first", duration(report.time[row]));
	add(body, "thread", `${task.comm}-${task.tid}`);
	if (task.pid !== task.tid) add(body, "process", String(task.pid));
	add(body, "cpu", String(report.columns.cpu.at(row)));
	const instance = report.head.instances[report.columns.instance.index(row)];
	if (instance) add(body, "instance", instance);
	const loss = app.lossAt(row);
	if (loss) add(body, "lost before", loss.lost < 0 ? "not counted" : count(loss.lost));
	const fields = table.appendChild(make("tbody"));
	if (event.short) add(fields, "fields", "the record is shorter than its event says");
	if (event.broken) add(fields, "fields", `cannot be read: ${event.broken}`);
	for (const field of event.fields) add(fields, field.name, valueText(field.at(report.local[row])));
	document.getElementById("record").replaceChildren(table);
}

class Cards {
	constructor(app) {
		this.app = app;
		this.panel = document.getElementById("cards");
		this.choice = document.getElementById("fields-event");
		this.job = 0;
		for (const event of app.report.byCount) {
			const option = make("option", "", plain(event.label), { value: event.number });
			if (event.fields.length) this.choice.append(option);
		}
		const best = app.report.byCount.find((event) => event.fields.some((f) => !f.isText))
			|| app.report.byCount.find((event) => event.fields.length);
		if (best) this.choice.value = best.number;
		else this.choice.parentElement.hidden = true;
		this.chosen = false; // by the user; else an event with records in view
		this.choice.addEventListener("change", () => {
			this.chosen = true;
			this.refresh();
		});
	}

	// Without a user's choice: the event with most matching records.
	async choose(stopped) {
		const { report, rows, view } = this.app;
		if (this.chosen || !rows) return;
		const counts = new Uint32Array(report.events.length);
		const begin = report.rowAt(view.from, rows);
		await inSlices(begin, report.rowAt(view.to, rows), (low, high) => {
			for (let n = low; n < high; n++) counts[report.event[rows[n]]]++;
		}, stopped);
		if (counts[Number(this.choice.value)]) return;
		const most = report.byCount.filter((event) => event.fields.length && counts[event.number]);
		if (most.length) this.choice.value = most.sort((a, b) => counts[b.number] - counts[a.number])[0].number;
	}

	// Indexes among the event's rows of the matching ones in view
	async rows(event, stopped) {
		const { report, rows, view } = this.app;
		if (!rows) {
			const from = report.rowAt(view.from, event.rows);
			const to = report.rowAt(view.to, event.rows);
			const found = new Uint32Array(to - from);
			for (let n = 0; n < found.length; n++) found[n] = from + n;
			return found;
		}
		const begin = report.rowAt(view.from, rows);
		const end = report.rowAt(view.to, rows);
		const found = new Uint32Array(Math.min(end - begin, event.count));
		let size = 0;
		const done = await inSlices(begin, end, (low, high) => {
			for (let n = low; n < high; n++)
				if (report.event[rows[n]] === event.number) found[size++] = report.local[rows[n]];
		}, stopped);
		return done ? found.subarray(0, size) : null;
	}

	async refresh() {
		const job = ++this.job;
		const stopped = () => job !== this.job;
		this.panel.setAttribute("aria-busy", "true");
		await this.choose(stopped);
		if (stopped()) return;
		const event = this.app.report.events[Number(this.choice.value)];
		if (!event || !this.choice.value) {
			this.panel.replaceChildren(make("p", "hint card", "No event has fields."));
			this.panel.setAttribute("aria-busy", "false");
			return;
		}
		await event.load();
		const rows = await this.rows(event, stopped);
		if (!rows || stopped()) return;
		const cards = [];
		for (const field of event.fields) {
			const kind = field.isText ? this.textCard : this.numberCard;
			const card = await kind.call(this, field, rows, stopped, event);
			if (!card || stopped()) return;
			cards.push(card);
		}
		this.panel.replaceChildren(...cards);
		for (const card of cards) if (card.draw) card.draw();
		this.panel.setAttribute("aria-busy", "false");
	}

	head(field, what) {
		const card = make("div", "card");
		card.dataset.field = field.name;
		const title = card.appendChild(make("h3"));
		title.append(addText(make("span", "", "", { title: plain(field.name) }), field.name));
		title.append(make("span", "quiet", what));
		return card;
	}

	async numberCard(field, rows, stopped, event) {
		const found = await statistics(field.column, rows, stopped);
		if (!found) return null;
		const card = this.head(field, plural(found.count, "value"));
		if (!found.count) return card;
		const { bins } = found;
		if (bins) {
			const reach = `from ${found.least} to ${found.most}${bins.log ? ", logarithmic" : ""}`;
			const most = `at most ${plural(Math.max(...bins.counts), "record")} a bar`;
			const label = `Histogram of ${plain(field.name)} ${reach}: ${most}`;
			const canvas = make("canvas", "", "", { role: "img", "aria-label": label });
			card.append(canvas);
			card.draw = () => drawHistogram(canvas, bins, this.app.timeline, event.color);
		}
		const list = card.appendChild(make("dl"));
		const add = (name, value) => {
			const item = list.appendChild(make("div"));
			const text = typeof value === "string" ? value : count(value);
			item.append(make("dt", "", name), make("dd", "", text, { title: text }));
		};
		add("min", found.least);
		PERCENTILES.forEach((p, n) => add(`p${p}`, found.percentiles[n]));
		add("max", found.most);
		const rounded = Number(found.mean.toPrecision(6));
		add("mean", Math.abs(found.mean) < 1e6 ? grouped.format(rounded) : brief(found.mean));
		const longest = Math.max(String(found.least).length, String(found.most).length);
		if (longest > 15) card.classList.add("wide");
		else if (longest > 3) list.style.gridTemplateColumns = "repeat(2, minmax(0, 1fr))";
		return card;
	}

	async textCard(field, rows, stopped) {
		const found = await topTexts(field, rows, TOP_TEXTS, stopped);
		if (!found) return null;
		const card = this.head(field, `${count(found.different)} different`);
		const table = card.appendChild(make("table", "top"));
		for (const [text, number] of found.top) {
			const row = table.appendChild(make("tr"));
			const cell = addText(row.appendChild(make("td")), text.slice(0, CELL_TEXT));
			if (!text) cell.append(make("span", "quiet", "empty"));
			cell.title = plain(text.slice(0, 1000));
			row.append(make("td", "", `${count(number)} · ${((number / rows.length) * 100).toFixed(1)} %`));
		}
		return card;
	}
}

function drawHistogram(canvas, bins, timeline, color) {
	const ratio = window.devicePixelRatio || 1;
	const width = canvas.clientWidth;
	const height = canvas.clientHeight;
	canvas.width = Math.round(width * ratio);
	canvas.height = Math.round(height * ratio);
	const context = canvas.getContext("2d");
	context.scale(ratio, ratio);
	const base = height - 14;
	const most = Math.max(...bins.counts);
	const wide = width / bins.counts.length;
	context.fillStyle = timeline.palette[color];
	bins.counts.forEach((n, i) => {
		if (!n) return;
		const high = Math.max((n / most) * (base - 2), 1);
		context.fillRect(i * wide, base - high, Math.max(wide - 1, 1), high);
	});
	context.fillStyle = timeline.ink.line;
	context.fillRect(0, base, width, 1);
	context.fillStyle = timeline.ink.quiet;
	context.font = "10px system-ui, sans-serif";
	context.textBaseline = "bottom";
	const middle = bins.edges[bins.counts.length >> 1];
	const last = bins.edges[bins.counts.length];
	const labels = [[0, bins.edges[0], "left"], [width / 2, middle, "center"], [width, last, "right"]];
	for (const [x, value, align] of labels) {
		context.textAlign = align;
		context.fillText(`${brief(value)}${bins.log && align === "center" ? " (log)" : ""}`, x, height);
	}
}
