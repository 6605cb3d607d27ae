// Spans: slices between the records of NAME_begin and NAME_end, by their fields (utracefs.span). The end has
// the duration; a begin without an end is open up to the end of the recording.

const SPAN_LEVELS = 4; // of a lane; deeper ones, and more at a time, are drawn on the last

function spanEvents(report) {
	const found = [];
	const place = (event, name) => event.fields.findIndex((field) => field.name === name);
	for (const event of report.events) {
		if (event.short || !/_(begin|end)$/.test(event.name)) continue;
		const [id, parent, length] = ["span_id", "parent_id", "duration_ns"].map((name) => place(event, name));
		const ends = event.name.endsWith("_end");
		if (id === 0 && parent === 1 && (length === 2) === ends)
			found.push({ event, ends, name: event.name.replace(/_(begin|end)$/, ""), own: place(event, "span_name") });
	}
	return found;
}

class Spans {
	constructor(report) {
		this.report = report;
		this.all = []; // {name, from, to, lane, level, color, row}, by their begin
	}

	// Needs the fields of all events.
	async load() {
		const { report } = this;
		const byId = new Map();
		for (const { event, ends, name: common, own } of spanEvents(report).sort((a, b) => b.ends - a.ends)) {
			if (event.fields.length < 2) continue; // its fields are broken
			const [ids, parents, lengths] = event.fields.map((field) => field.column);
			await inSlices(0, event.count, (low, high) => {
				for (let i = low; i < high; i++) {
					const id = BigInt(ids.at(i));
					if (byId.has(id)) continue;
					const row = event.rows[i];
					const to = ends ? report.time[row] : report.span;
					const from = ends ? to - Number(lengths.at(i)) : report.time[row];
					const { color } = event;
					const name = (own >= 0 && event.fields[own].at(i)) || common;
					const parent = BigInt(parents.at(i));
					byId.set(id, { name, from, to, lane: report.lane[row], level: 0, color, row, parent });
				}
			});
		}
		this.all = [...byId.values()].sort((a, b) => a.from - b.from || b.to - a.to);
		const free = new Map(); // lane to the ends of the last slice of each level
		await inSlices(0, this.all.length, (low, high) => {
			for (let i = low; i < high; i++) {
				const slice = this.all[i];
				const parent = byId.get(slice.parent);
				if (!free.has(slice.lane)) free.set(slice.lane, []);
				const levels = free.get(slice.lane);
				let level = parent && parent.lane === slice.lane ? parent.level + 1 : 0;
				while (level < SPAN_LEVELS - 1 && levels[level] > slice.from) level++;
				slice.level = Math.min(level, SPAN_LEVELS - 1);
				levels[slice.level] = Math.max(levels[slice.level] || 0, slice.to);
			}
		});
	}

	// work(slice) for those of a view
	each({ from, to }, work) {
		for (const slice of this.all) {
			if (slice.from >= to) break;
			if (slice.to >= from) work(slice);
		}
	}

	// The slices of a lane at a time, the outermost first.
	at(lane, time, view) {
		const found = [];
		this.each(view, (slice) => {
			if (slice.lane === lane && slice.from <= time && time <= slice.to) found.push(slice);
		});
		return found;
	}
}
