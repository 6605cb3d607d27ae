// The timeline: overview, rates and lanes, on canvas, of the matching records in view; without a search also
// of records without a row.
//
// Level of detail: for any number of records it draws bins of two points' width, with one count for each
// colour; for records without a row bins are at least as wide as theirs. Bins are computed in slices; until
// they are complete the previous ones are drawn, shifted and scaled.

const COLORS = 9; // eight events with most records, and the others
const BIN_POINTS = 2;
const LANE_HEIGHT = 20;
const RULER_HEIGHT = 18;
const LEAST_SPAN = 100; // ns

class Bins {
	// counts[bin * COLORS + color], lanes[(slot * bins + bin) * COLORS + color]
	constructor(view, points, slots, rest) {
		this.step = (view.to - view.from) / Math.max(points / BIN_POINTS, 1);
		const coarse = rest && rest.step > this.step && rest.begin < view.to && rest.end > view.from;
		if (coarse) this.step = rest.step;
		const origin = coarse ? rest.begin : 0;
		this.from = origin + Math.floor((view.from - origin) / this.step) * this.step;
		this.count = Math.ceil((view.to - this.from) / this.step) + 1;
		this.rates = new Uint32Array(this.count * COLORS);
		this.lanes = new Uint32Array(this.count * COLORS * slots.length);
		this.slots = slots; // numbers of lanes
	}

	async fill({ report, rows, rest, hidden }, colors, stopped) {
		const slotOf = new Int32Array(report.lanes.length).fill(-1);
		this.slots.forEach((lane, slot) => (slotOf[lane] = slot));
		const { time, event, lane } = report;
		const { from, step, count, rates, lanes } = this;
		const add = (bin, color, laneNumber, number) => {
			rates[bin * COLORS + color] += number;
			const slot = slotOf[laneNumber];
			if (slot >= 0) lanes[(slot * count + bin) * COLORS + color] += number;
		};
		rest?.each(from, from + count * step, hidden, (i) => {
			const bin = Math.max(Math.floor((rest.time[i] - from) / step + 1e-6), 0);
			add(bin, colors[rest.event[i]], rest.lane[i], rest.number[i]);
		});
		const begin = report.rowAt(from, rows);
		const end = report.rowAt(from + count * step, rows);
		return inSlices(begin, end, (low, high) => {
			for (let n = low; n < high; n++) {
				const row = rows ? rows[n] : n;
				const bin = Math.min(((time[row] - from) / step) | 0, count - 1);
				add(bin, colors[event[row]], lane[row], 1);
			}
		}, stopped);
	}

	// A bin, clipped: a canvas has limits beyond its edges.
	paint(context, bin, x, width, top, height) {
		const left = Math.max(x(this.from + bin * this.step), -BIN_POINTS);
		const right = Math.min(x(this.from + (bin + 1) * this.step), width);
		context.fillRect(left, top, Math.max(right - left, 1), height);
	}
}

class Timeline {
	constructor(app) {
		this.app = app;
		this.report = app.report;
		this.overview = document.getElementById("overview");
		this.rates = document.getElementById("rates");
		this.canvas = document.getElementById("lanes-canvas");
		this.scroller = document.getElementById("lanes");
		this.all = document.getElementById("lanes-all");
		this.colors = Uint8Array.from(this.report.events, (event) => event.color);
		this.bins = null;
		this.whole = null;
		this.marked = null; // [from, to] in points, while Shift+drag
		this.hover = null;
		this.job = 0;
		this.labels = new Map();
		this.spans = new Spans(this.report);
		this.layOut(this.report.lanes.map((lane) => lane.count));
		const around = document.getElementById("timeline").clientHeight - this.scroller.clientHeight;
		const wanted = around + this.rows.length * LANE_HEIGHT + 8;
		document.querySelector("main").style.setProperty("--timeline", `${wanted}px`);
		this.scroller.addEventListener("scroll", () => this.refresh());
		new ResizeObserver(() => this.resize()).observe(this.scroller);
		this.listen(this.rates);
		this.listen(this.canvas);
		this.listenOverview();
		this.readColors();
		this.resize();
	}

	// Lanes of the threads with records: counts by number.
	layOut(counts) {
		this.rows = []; // of the lanes' area: {pid}, or {lane, count}
		let process = null;
		for (const lane of this.report.lanes) {
			lane.place = -1;
			if (!counts[lane.number]) continue;
			if (lane.grouped && lane.pid !== process) this.rows.push({ pid: lane.pid });
			process = lane.pid;
			lane.place = this.rows.push({ lane, count: counts[lane.number] }) - 1;
		}
		this.all.style.height = `${this.rows.length * LANE_HEIGHT}px`;
		for (const label of this.labels.values()) label.remove();
		this.labels.clear();
	}

	// Scrolls to the lane of a record.
	reveal(row) {
		const { place } = this.report.lanes[this.report.lane[row]];
		const top = place * LANE_HEIGHT;
		const { scrollTop, clientHeight } = this.scroller;
		if (place < 0 || (top >= scrollTop && top + LANE_HEIGHT <= scrollTop + clientHeight)) return;
		this.scroller.scrollTop = top - clientHeight / 2;
	}

	readColors() {
		const style = getComputedStyle(document.documentElement);
		const color = (name) => style.getPropertyValue(name).trim();
		this.palette = Array.from({ length: COLORS }, (_, n) => color(`--c${n}`));
		this.ink = { text: color("--text"), quiet: color("--quiet"), line: color("--line"), faint: color("--faint"),
			loss: color("--loss"), accent: color("--accent"), panel: color("--panel") };
		this.paint();
	}

	resize() {
		this.ratio = window.devicePixelRatio || 1;
		const width = this.rates.clientWidth;
		this.width = width;
		this.height = Math.max(this.scroller.clientHeight, LANE_HEIGHT);
		const gutter = this.rates.offsetLeft - this.rates.parentElement.offsetLeft;
		this.canvas.style.width = `${Math.max(this.scroller.clientWidth - gutter, 1)}px`;
		this.canvas.style.height = `${this.height}px`;
		for (const canvas of [this.overview, this.rates, this.canvas]) {
			canvas.width = Math.round(canvas.clientWidth * this.ratio);
			canvas.height = Math.round(canvas.clientHeight * this.ratio);
		}
		this.wholeFor = undefined;
		this.paint(); // the canvases are empty now
		this.refresh();
	}

	visible() {
		const first = Math.floor(this.scroller.scrollTop / LANE_HEIGHT);
		return [first, Math.min(first + Math.ceil(this.height / LANE_HEIGHT) + 1, this.rows.length)];
	}

	// Compute bins for the view; draws the present ones at once.
	async refresh() {
		const job = ++this.job;
		this.placeLabels();
		this.paintSoon();
		const [first, last] = this.visible();
		const slots = this.rows.slice(first, last).filter((row) => row.lane).map((row) => row.lane.number);
		const { rows, rest } = this.app;
		const bins = new Bins(this.app.view, this.width, slots, rest);
		if (!(await bins.fill(this.app, this.colors, () => job !== this.job))) return;
		this.bins = bins;
		this.paintSoon();
		if (this.wholeFor !== rows) {
			const whole = new Bins(this.app.whole, this.overview.clientWidth, [], rest);
			if (!(await whole.fill(this.app, this.colors, () => job !== this.job))) return;
			this.whole = whole;
			this.wholeFor = rows;
			this.paintSoon();
		}
		this.settled = job;
	}

	placeLabels() {
		const [first, last] = this.visible();
		for (const [number, label] of this.labels) {
			if (number < first || number >= last) {
				label.remove();
				this.labels.delete(number);
			}
		}
		for (let number = first; number < last; number++) {
			if (this.labels.has(number)) continue;
			const { lane, pid, count: records } = this.rows[number];
			const label = lane
				? make("button", "lane", "", { type: "button" }) : make("span", "lane process", `process ${pid}`);
			if (lane) {
				if (lane.grouped) label.classList.add("inside");
				const name = label.appendChild(make("span", "name ends"));
				addText(name.appendChild(make("span")), lane.comm);
				name.append(make("span", "", `-${lane.tid}`));
				label.append(make("span", "count quiet", brief(records)));
				label.title = `${laneName(lane)}: ${plural(records, "record")}; choose to search for it`;
				label.addEventListener("click", () => this.app.toggleTerm(`tid=${lane.tid}`));
			}
			label.style.top = `${number * LANE_HEIGHT}px`;
			this.labels.set(number, label);
			this.all.append(label);
		}
	}

	paintSoon() {
		if (this.frame) return;
		this.frame = requestAnimationFrame(() => {
			this.frame = 0;
			this.paint();
		});
	}

	x(time) {
		const { from, to } = this.app.view;
		return ((time - from) / (to - from)) * this.width;
	}

	timeAt(x) {
		const { from, to } = this.app.view;
		return from + (x / this.width) * (to - from);
	}

	context(canvas) {
		const context = canvas.getContext("2d");
		context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
		context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
		context.font = "11px system-ui, sans-serif";
		context.textBaseline = "middle";
		return context;
	}

	paint() {
		if (!this.ratio) return;
		this.paintOverview();
		this.paintRates();
		this.paintLanes();
	}

	paintOverview() {
		const context = this.context(this.overview);
		const width = this.overview.clientWidth;
		const height = this.overview.clientHeight;
		const { from, to } = this.app.whole;
		const x = (time) => ((time - from) / (to - from)) * width;
		if (this.whole)
			this.stack(context, this.whole, this.whole.rates, [[0, height]], x, width, 0.5, (sum, most) =>
				(Math.log1p(sum) / Math.log1p(most)) * height);
		const left = ((this.app.view.from - from) / (to - from)) * width;
		const right = ((this.app.view.to - from) / (to - from)) * width;
		context.fillStyle = this.ink.panel;
		context.globalAlpha = 0.68;
		context.fillRect(0, 0, left, height);
		context.fillRect(right, 0, width - right, height);
		context.globalAlpha = 1;
		context.strokeStyle = this.ink.accent;
		const begin = Math.max(left, 0);
		context.strokeRect(begin + 0.5, 0.5, Math.max(Math.min(right, width) - begin - 1, 2), height - 1);
		this.losses(context, x, 0, 4, 0, this.report.losses.length);
	}

	// Stacked columns of bins, colour by colour; returns the largest count. counts: `rates` or `lanes` of the
	// bins; places: [slot, y of its base]; x: coordinate of a time; tall: height for a count and the largest
	stack(context, bins, counts, places, x, width, least, tall) {
		const sums = new Uint32Array(counts.length / COLORS);
		let most = 1;
		for (let cell = 0; cell < sums.length; cell++) {
			for (let color = 0; color < COLORS; color++) sums[cell] += counts[cell * COLORS + color];
			if (sums[cell] > most) most = sums[cell];
		}
		const below = new Uint32Array(sums.length);
		for (let color = 0; color < COLORS; color++) {
			context.fillStyle = this.palette[color];
			for (const [slot, base] of places) {
				for (let bin = 0, cell = slot * bins.count; bin < bins.count; bin++, cell++) {
					const here = counts[cell * COLORS + color];
					if (!here) continue;
					const whole = tall(sums[cell], most);
					const high = Math.max((here / sums[cell]) * whole, least);
					bins.paint(context, bin, x, width, base - (below[cell] / sums[cell]) * whole - high, high);
					below[cell] += here;
				}
			}
		}
		return most;
	}

	paintRates() {
		const context = this.context(this.rates);
		const height = this.rates.clientHeight;
		const base = height - RULER_HEIGHT;
		this.ruler(context, base, height);
		if (this.bins) {
			const x = (time) => this.x(time);
			const tall = (sum, largest) => (sum / largest) * (base - 10);
			const most = this.stack(context, this.bins, this.bins.rates, [[0, base]], x, this.width, 0.5, tall);
			const peak = `≤ ${brief(clockInNs ? most / (this.bins.step / 1e9) : most)}`;
			const what = clockInNs ? "records/s" : "records a bin";
			const label = this.bins.rates.some(Boolean) ? `${what}\n${peak}` : what;
			document.getElementById("rate-label").textContent = label;
			this.peak = most;
		}
		const { from, to } = this.app.view;
		const { losses } = this.report;
		const first = firstOf(losses.length, (n) => this.report.time[losses[n].row] >= from);
		this.losses(context, (time) => this.x(time), 0, 8, first, losses.length, to);
		if (this.marked) this.paintMarked(context, height);
		this.paintCursor(context, height);
	}

	losses(context, x, top, high, first, last, to = Infinity) {
		context.fillStyle = this.ink.loss;
		let drawn = -1;
		for (let n = first; n < last; n++) {
			const { row } = this.report.losses[n];
			const end = this.report.time[row];
			const begin = row ? this.report.time[row - 1] : end;
			if (begin > to) break;
			const right = Math.max(x(end), x(begin) + 2);
			if (right < drawn + 1) continue;
			context.fillRect(x(begin), top, right - x(begin), high);
			drawn = right;
		}
	}

	ruler(context, base, height) {
		const { from, to } = this.app.view;
		const least = ((to - from) * 90) / Math.max(this.width, 90);
		const unit = 10 ** Math.floor(Math.log10(least));
		const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= least);
		context.strokeStyle = this.ink.line;
		context.fillStyle = this.ink.quiet;
		context.beginPath();
		this.marks = [];
		for (let n = Math.ceil(from / step); n * step <= to; n++) {
			const x = Math.round(this.x(n * step)) + 0.5;
			this.marks.push(x);
			context.moveTo(x, 0);
			context.lineTo(x, base + 4);
			const label = offset(n * step, step);
			const half = context.measureText(label).width / 2;
			if (x - half >= 0 && x + half <= this.width)
				context.fillText(label, x - half, base + RULER_HEIGHT / 2 + 2);
		}
		context.moveTo(0, base + 0.5);
		context.lineTo(this.width, base + 0.5);
		context.stroke();
	}

	paintLanes() {
		const context = this.context(this.canvas);
		const [first, last] = this.visible();
		const top = first * LANE_HEIGHT - this.scroller.scrollTop;
		context.strokeStyle = this.ink.faint;
		context.beginPath();
		for (const x of this.marks || []) {
			context.moveTo(x, 0);
			context.lineTo(x, this.height);
		}
		for (let n = first; n <= last; n++) {
			const y = Math.round(top + (n - first) * LANE_HEIGHT) + 0.5;
			context.moveTo(0, y);
			context.lineTo(this.width, y);
		}
		context.stroke();
		if (this.bins) this.paintCells(context, first, last, top);
		this.paintSpans(context, first, last, top);
		const selected = this.app.selected;
		const place = selected < 0 ? -1 : this.report.lanes[this.report.lane[selected]].place;
		if (place >= 0) {
			const y = top + (place - first) * LANE_HEIGHT;
			const x = this.x(this.report.time[selected]);
			context.strokeStyle = this.ink.accent;
			context.lineWidth = 2;
			context.strokeRect(x - 4, y + 1, 8, LANE_HEIGHT - 2);
			context.lineWidth = 1;
		}
		if (this.marked) this.paintMarked(context, this.height);
		this.paintCursor(context, this.height);
	}

	paintCells(context, first, last, top) {
		const { bins } = this;
		const slotOf = new Map(bins.slots.map((lane, slot) => [lane, slot]));
		const places = [];
		for (let n = first; n < last; n++) {
			const slot = slotOf.get(this.rows[n].lane?.number);
			if (slot !== undefined) places.push([slot, top + (n - first + 1) * LANE_HEIGHT - 2]);
		}
		const tall = (sum, most) => (LANE_HEIGHT - 4) * (0.3 + (0.7 * Math.log1p(sum)) / Math.log1p(most));
		this.stack(context, bins, bins.lanes, places, (time) => this.x(time), this.width, 0, tall);
	}

	async showSpans() {
		await this.spans.load();
		document.getElementById("timeline").dataset.spans = this.spans.all.length;
		this.paintSoon();
	}

	// Narrow ones that would be drawn over each other are drawn once.
	paintSpans(context, first, last, top) {
		const drawn = new Map();
		const high = LANE_HEIGHT / SPAN_LEVELS - 1;
		const { hidden } = this.app;
		this.spans.each(this.app.view, (slice) => {
			const { place } = this.report.lanes[slice.lane];
			if (place < first || place >= last || hidden.has(this.report.event[slice.row])) return;
			const left = Math.max(this.x(slice.from), -BIN_POINTS);
			const right = Math.max(Math.min(this.x(slice.to), this.width + BIN_POINTS), left + 1);
			const key = place * SPAN_LEVELS + slice.level;
			if (right < (drawn.get(key) ?? -Infinity) + 0.5) return;
			drawn.set(key, right);
			context.fillStyle = this.palette[slice.color];
			context.globalAlpha = 0.85;
			const y = top + (place - first) * LANE_HEIGHT + 1 + slice.level * (high + 1);
			context.fillRect(left, y, right - left, high);
		});
		context.globalAlpha = 1;
	}

	paintMarked(context, height) {
		const [a, b] = this.marked;
		context.fillStyle = this.ink.accent;
		context.globalAlpha = 0.18;
		context.fillRect(Math.min(a, b), 0, Math.abs(b - a), height);
		context.globalAlpha = 1;
	}

	paintCursor(context, height) {
		if (this.hover === null) return;
		context.fillStyle = this.ink.quiet;
		context.fillRect(Math.round(this.hover), 0, 1, height);
	}

	zoom(factor, x = this.width / 2) {
		const at = this.timeAt(x);
		const { from, to } = this.app.view;
		this.app.setView(at - (at - from) * factor, at + (to - at) * factor);
	}

	pan(points) {
		const by = (points / this.width) * (this.app.view.to - this.app.view.from);
		this.app.setView(this.app.view.from + by, this.app.view.to + by, true);
	}

	listen(canvas) {
		const pointers = new Map();
		let moved = 0;
		let pinch = 0;
		const inside = (event) => {
			const box = canvas.getBoundingClientRect();
			return [event.clientX - box.left, event.clientY - box.top];
		};
		// A wheel reports pixels, lines or pages.
		canvas.addEventListener("wheel", (event) => {
			event.preventDefault();
			const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
			if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
				this.pan((event.deltaX || event.deltaY) * unit);
			else this.zoom(Math.exp(Math.max(-400, Math.min(400, event.deltaY * unit)) * 0.002), inside(event)[0]);
		}, { passive: false });
		// One pointer drags, or marks a time span with shift; two pinch. A move of up to 3 pixels is still a click.
		canvas.addEventListener("pointerdown", (event) => {
			canvas.setPointerCapture(event.pointerId);
			pointers.set(event.pointerId, inside(event));
			moved = pointers.size > 1 ? Infinity : 0;
			if (event.shiftKey) this.marked = [inside(event)[0], inside(event)[0]];
			if (pointers.size === 2) pinch = distance(pointers);
		});
		canvas.addEventListener("pointermove", (event) => {
			const [x, y] = inside(event);
			this.hover = x;
			const before = pointers.get(event.pointerId);
			if (!before) {
				this.tip(event, canvas === this.canvas ? y : null);
				this.paintSoon();
				return;
			}
			pointers.set(event.pointerId, [x, y]);
			moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
			this.hideTip();
			if (this.marked) {
				this.marked[1] = x;
				this.paintSoon();
			} else if (pointers.size === 2) {
				const now = distance(pointers);
				const middle = [...pointers.values()].reduce((sum, [px]) => sum + px / 2, 0);
				if (now > 8 && pinch > 8) this.zoom(pinch / now, middle);
				this.pan((before[0] - x) / 2);
				pinch = now;
			} else if (moved > 3) {
				canvas.classList.add("moving");
				this.pan(before[0] - x);
				if (canvas === this.canvas) this.scroller.scrollTop += before[1] - y;
			}
		});
		const end = (event) => {
			const at = pointers.get(event.pointerId);
			if (!pointers.delete(event.pointerId)) return;
			canvas.classList.remove("moving");
			if (this.marked) {
				const [a, b] = this.marked.map((x) => this.timeAt(x));
				this.marked = null;
				if (moved > 3) this.app.setView(Math.min(a, b), Math.max(a, b));
				this.paintSoon();
			} else if (moved <= 3 && event.type === "pointerup") {
				this.choose(at[0], canvas === this.canvas ? at[1] : null);
			}
		};
		canvas.addEventListener("pointerup", end);
		canvas.addEventListener("pointercancel", end);
		canvas.addEventListener("pointerleave", () => {
			this.hover = null;
			this.hideTip();
			this.paintSoon();
		});
		canvas.addEventListener("dblclick", (event) => this.zoom(0.4, inside(event)[0]));
		// The same by keyboard.
		canvas.addEventListener("keydown", (event) => {
			if (canvas === this.canvas && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
				this.scroller.scrollTop += event.key === "ArrowUp" ? -LANE_HEIGHT : LANE_HEIGHT;
				event.preventDefault();
			} else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
				this.pan((event.key === "ArrowLeft" ? -0.15 : 0.15) * this.width);
				event.preventDefault();
			}
		});
	}

	listenOverview() {
		const move = (event) => {
			if (!event.buttons && event.type !== "pointerdown") return;
			this.overview.setPointerCapture(event.pointerId);
			const { from, to } = this.app.whole;
			const box = this.overview.getBoundingClientRect();
			const at = from + ((event.clientX - box.left) / box.width) * (to - from);
			const half = (this.app.view.to - this.app.view.from) / 2;
			this.app.setView(at - half, at + half, true);
		};
		this.overview.addEventListener("pointerdown", move);
		this.overview.addEventListener("pointermove", move);
	}

	laneAt(y) {
		const row = this.rows[Math.floor((y + this.scroller.scrollTop) / LANE_HEIGHT)];
		return row && row.lane ? row.lane : null;
	}

	// Selects the record nearest to a point, within some distance; y: null for any lane.
	choose(x, y) {
		const { report } = this;
		const { rows } = this.app;
		const lane = y === null ? null : this.laneAt(y);
		if (y !== null && !lane) return;
		const at = this.timeAt(x);
		let best = -1;
		const end = report.rowAt(this.timeAt(x + 6), rows);
		for (let n = report.rowAt(this.timeAt(x - 6), rows); n < end; n++) {
			const row = rows ? rows[n] : n;
			if (lane && report.lane[row] !== lane.number) continue;
			if (best < 0 || Math.abs(report.time[row] - at) < Math.abs(report.time[best] - at)) best = row;
		}
		if (best >= 0) this.app.select(best);
	}

	tip(event, y) {
		const tip = document.getElementById("tip");
		const box = event.target.getBoundingClientRect();
		const x = event.clientX - box.left;
		const { bins } = this;
		const lines = [];
		const lane = y === null ? null : this.laneAt(y);
		if (bins && (y === null || lane)) {
			const bin = Math.floor((this.timeAt(x) - bins.from) / bins.step);
			const slot = lane ? bins.slots.indexOf(lane.number) : 0;
			const counts = lane ? bins.lanes : bins.rates;
			lines.push(`${lane ? `${laneName(lane)}, ` : ""}${offset(this.timeAt(x), bins.step)}`);
			for (let color = 0; color < COLORS && slot >= 0 && bin >= 0 && bin < bins.count; color++) {
				const here = counts[(slot * bins.count + bin) * COLORS + color];
				if (here) lines.push(`${this.app.colorName(color)}: ${count(here)} in ${duration(bins.step)}`);
			}
		}
		if (lane) {
			for (const slice of this.spans.at(lane.number, this.timeAt(x), this.app.view).slice(0, 8))
				lines.push(`${plain(slice.name)}: ${duration(slice.to - slice.from)}`);
		}
		if (!lines.length) return this.hideTip();
		tip.textContent = lines.join("\n");
		tip.hidden = false;
		tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
		tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
	}

	hideTip() {
		document.getElementById("tip").hidden = true;
	}
}

function distance(pointers) {
	const [a, b] = [...pointers.values()];
	return Math.hypot(a[0] - b[0], a[1] - b[1]);
}
