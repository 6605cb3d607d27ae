// The columns of the page, as typed arrays. Loops over many rows run in slices, with `pause` in between, so
// that the page stays responsive.

const SLICE_MS = 8;
const SLICE_ROWS = 1 << 15;

const channel = new MessageChannel();
const waiting = [];
channel.port1.onmessage = () => waiting.shift()();

function pause() {
	return new Promise((resolve) => {
		waiting.push(resolve);
		channel.port2.postMessage(0);
	});
}

// work(from, to) for slices of from <= row < to; false when `stopped` becomes true.
async function inSlices(from, to, work, stopped = () => false) {
	let begin = performance.now();
	for (let at = from; at < to; at += SLICE_ROWS) {
		work(at, Math.min(at + SLICE_ROWS, to));
		if (performance.now() - begin > SLICE_MS) {
			await pause();
			if (stopped()) return false;
			begin = performance.now();
		}
	}
	return true;
}

// The first n of 0 to `count` where `holds(n)`, which then holds for all behind it; `count` for none.
function firstOf(count, holds) {
	let low = 0;
	for (let high = count; low < high;) {
		const middle = (low + high) >>> 1;
		if (holds(middle)) high = middle;
		else low = middle + 1;
	}
	return low;
}

const TEXT_AT_ONCE = 1 << 18; // of base64; a multiple of 4

async function unpacked(id) {
	const script = document.getElementById(`data${id}`);
	const text = script.textContent;
	script.remove();
	const stream = new DecompressionStream("deflate-raw");
	const whole = new Response(stream.readable).arrayBuffer();
	whole.catch(() => {}); // the writer's error is shown
	const writer = stream.writable.getWriter();
	for (let at = 0; at < text.length; at += TEXT_AT_ONCE) {
		const piece = atob(text.slice(at, at + TEXT_AT_ONCE));
		const bytes = new Uint8Array(piece.length);
		for (let i = 0; i < piece.length; i++) bytes[i] = piece.charCodeAt(i);
		await writer.write(bytes);
		await pause();
	}
	await writer.close();
	return new Uint8Array(await whole);
}

const ARRAYS = { 0: Uint8Array, 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: BigUint64Array };

// Integers: `base` (BigInt) plus `above[row]`, which is null where all are equal.
class Column {
	constructor(head) {
		this.count = head.count;
		this.width = head.width;
		this.base = BigInt(head.base);
		this.above = null;
		this.id = head.id;
		// Whether all values are exact as Numbers.
		this.small = head.width < 8 && this.base > -(2n ** 52n) && this.base < 2n ** 52n;
		this.number = Number(this.base);
	}

	async load() {
		if (!this.width || this.above) return;
		const packed = await unpacked(this.id);
		const bytes = new Uint8Array(packed.length);
		for (let k = 0; k < this.width; k++) {
			const plane = k * this.count;
			await inSlices(0, this.count, (from, to) => {
				for (let i = from, at = from * this.width + k; i < to; i++, at += this.width)
					bytes[at] = packed[plane + i];
			});
		}
		this.above = new ARRAYS[this.width](bytes.buffer);
	}

	// Exact: a Number if all values of the column are, else a BigInt.
	at(i) {
		const above = this.above ? this.above[i] : 0;
		return this.small ? this.number + above : this.base + BigInt(above);
	}

	near(i) {
		return this.above ? this.number + Number(this.above[i]) : this.number;
	}

	index(i) {
		return this.above ? this.number + this.above[i] : this.number;
	}
}

class Field {
	constructor(head) {
		this.name = head.name;
		this.column = new Column(head.column);
		this.isText = "pools" in head;
		this.texts = null;
		this.head = head;
	}

	async load() {
		await this.column.load();
		if (!this.isText) return;
		const texts = [];
		for (const id of this.head.pools) {
			const json = new TextDecoder().decode(await unpacked(id));
			for (const text of JSON.parse(json)) texts.push(text);
			await pause();
		}
		this.texts = texts;
	}

	at(i) {
		return this.isText ? this.texts[this.column.index(i)] : this.column.at(i);
	}
}

class TracedEvent {
	constructor(head, number) {
		this.number = number;
		this.name = head.name;
		this.system = head.system;
		this.short = head.short;
		this.count = head.count;
		this.total = head.total; // including records without a row
		this.fields = head.fields.map((field) => new Field(field));
		this.rows = new Uint32Array(head.count); // of the report
		this.ready = false;
		this.color = 0;
	}

	// Resolves when the fields are loaded.
	load() {
		this.loading ||= this.loadFields();
		return this.loading;
	}

	async loadFields() {
		try {
			for (const field of this.fields) await field.load();
		} catch (error) {
			this.broken = error.message;
			this.fields = [];
		}
		this.ready = true;
	}
}

// Records without a row: counts by event and lane in bins of `step` ns.
class Rest {
	constructor(report, head) {
		this.total = head.total;
		this.shift = BigInt(head.shift);
		this.step = 2 ** head.shift;
		this.columns = ["bin", "event", "task", "count"].map((name) => report.columns[`rest_${name}`]);
	}

	async load(report) {
		for (const column of this.columns) await column.load();
		const [bin, event, task, number] = this.columns;
		this.count = bin.count;
		this.time = new Float64Array(this.count); // ns after the first record; begin of the bin
		this.event = new Uint32Array(this.count);
		this.lane = new Uint32Array(this.count);
		this.number = new Float64Array(this.count);
		await inSlices(0, this.count, (from, to) => {
			for (let i = from; i < to; i++) {
				this.time[i] = Number((BigInt(bin.at(i)) << this.shift) - report.first);
				this.event[i] = event.index(i);
				this.lane[i] = report.tasks[task.index(i)].lane;
				this.number[i] = number.at(i);
				report.lanes[this.lane[i]].count += this.number[i];
			}
		});
		this.begin = this.time[0];
		this.end = this.time[this.count - 1] + this.step;
	}

	// work(i) for the bins with times in from <= time < to, without hidden events
	each(from, to, hidden, work) {
		let i = firstOf(this.count, (n) => this.time[n] + this.step > from);
		for (; i < this.count && this.time[i] < to; i++) if (!hidden.has(this.event[i])) work(i);
	}
}

class Report {
	constructor(head) {
		this.head = head;
		this.count = head.records;
		this.first = BigInt(head.first);
		this.span = Number(BigInt(head.last) - this.first); // ns
		this.columns = {};
		for (const [name, column] of Object.entries(head.columns)) this.columns[name] = new Column(column);
		this.events = head.events.map((event, number) => new TracedEvent(event, number));
		const names = new Map();
		for (const { name, short } of this.events)
			if (!short) names.set(name, (names.get(name) || 0) + 1);
		for (const event of this.events)
			event.label = names.get(event.name) > 1 ? `${event.system}:${event.name}` : event.name;
		this.tasks = head.tasks.map(([pid, tid, comm]) => ({ pid, tid, comm, lane: 0 }));
		this.comms = this.tasks.map((task) => task.comm);
		this.rest = head.rest && new Rest(this, head.rest);
		this.total = this.count + (this.rest ? this.rest.total : 0);
		this.byCount = [...this.events].sort((a, b) => b.total - a.total || a.number - b.number);
		this.byCount.forEach((event, rank) => (event.color = Math.min(rank, COLORS - 1)));
		this.makeLanes();
	}

	// A lane for each thread, grouped by process, in numerical order.
	makeLanes() {
		const lanes = new Map();
		for (const task of this.tasks) {
			const key = `${task.pid} ${task.tid}`;
			if (!lanes.has(key)) lanes.set(key, { pid: task.pid, tid: task.tid, comm: task.comm, tasks: [] });
			const lane = lanes.get(key);
			lane.comm = task.comm;
			lane.tasks.push(task);
		}
		this.lanes = [...lanes.values()].sort((a, b) => a.pid - b.pid || a.tid - b.tid);
		const threads = new Map();
		for (const lane of this.lanes) threads.set(lane.pid, (threads.get(lane.pid) || 0) + 1);
		this.processes = threads.size;
		this.lanes.forEach((lane, number) => {
			lane.number = number;
			lane.count = 0;
			lane.grouped = lane.pid !== lane.tid || threads.get(lane.pid) > 1;
			for (const task of lane.tasks) task.lane = number;
		});
	}

	async load() {
		const { time, event, task, cpu, instance, lost_at, lost } = this.columns;
		for (const column of [time, event, task, cpu, instance, lost_at, lost]) await column.load();
		const count = this.count;
		this.time = new Float64Array(count); // ns after the first record
		this.exact = this.span > Number.MAX_SAFE_INTEGER ? new BigUint64Array(count) : null;
		this.event = this.events.length > 1 << 16 ? new Uint32Array(count) : new Uint16Array(count);
		this.lane = new Uint32Array(count);
		this.local = new Uint32Array(count); // row among its event's rows
		const seen = new Uint32Array(this.events.length);
		const laneOf = Uint32Array.from(this.tasks, (t) => t.lane);
		const inLane = new Uint32Array(this.lanes.length);
		let at = 0;
		let exact = 0n;
		await inSlices(0, count, (from, to) => {
			for (let i = from; i < to; i++) {
				if (this.exact) {
					exact += BigInt(time.at(i));
					this.exact[i] = exact;
					at = Number(exact);
				} else {
					at += time.near(i);
				}
				this.time[i] = at;
				const e = event.index(i);
				this.event[i] = e;
				this.events[e].rows[seen[e]] = i;
				this.local[i] = seen[e]++;
				inLane[(this.lane[i] = laneOf[task.index(i)])]++;
			}
		});
		time.above = null; // its steps are no longer needed
		this.lanes.forEach((lane, number) => (lane.count = inLane[number]));
		if (this.rest) await this.rest.load(this);
		this.losses = [];
		for (let i = 0; i < lost_at.count; i++) this.losses.push({ row: lost_at.index(i), lost: lost.at(i) });
	}

	// ns of the recording's clock, BigInt
	timeOf(row) {
		return this.first + (this.exact ? this.exact[row] : BigInt(this.time[row]));
	}

	// The first row at or after a time, in ns after the first record; with `rows`, its index there.
	rowAt(time, rows = null) {
		if (rows) return firstOf(rows.length, (n) => this.time[rows[n]] >= time);
		return firstOf(this.count, (row) => this.time[row] >= time);
	}
}
