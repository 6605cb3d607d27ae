// Statistics of one column over some of its rows: exact percentiles, by nearest rank (the smallest value with
// at least p percent of all values at or below it), and a histogram.
//
// Values are counted by their upper 16 bits, then the values of a rank's bin by the next 16 bits, and so on:
// no sorting, any number of rows in slices.

const PERCENTILES = [50, 90, 95, 99, 99.9];
const BINS = 48;

// For `rows` of the column: {count, least, most, mean, percentiles, bins}; null when stopped.
async function statistics(column, rows, stopped) {
	const count = rows.length;
	if (!count) return { count };
	if (!column.above) {
		const value = column.at(0);
		const percentiles = PERCENTILES.map(() => value);
		return { count, least: value, most: value, mean: column.number, percentiles, bins: null };
	}
	// One pass for least, most and sum.
	const above = column.above;
	let least = above[rows[0]];
	let most = least;
	let sum = 0;
	let go = await inSlices(0, count, (from, to) => {
		for (let i = from; i < to; i++) {
			const value = above[rows[i]];
			if (value < least) least = value;
			if (value > most) most = value;
			sum += Number(value);
		}
	}, stopped);
	if (!go) return null;
	// Percentiles without sorting millions of rows: count the highest 16 bits of all values, then the next 16
	// of those in the buckets with a wanted rank.
	const found = new Map();
	const ranks = PERCENTILES.map((p) => Math.min(count, Math.ceil(Math.round(p * 10) * count / 1000)) - 1);
	const words = column.width < 2 ? null : new Uint16Array(above.buffer);
	const levels = words ? column.width / 2 : 1;
	go = await select(levels - 1, ranks.map((rank) => [rank, rank]), []);
	if (!go) return null;

	// wanted: [a rank among the rows whose upper words are `upper`, the rank among all], in order
	async function select(level, wanted, upper) {
		const counts = new Uint32Array(1 << 16);
		const ok = await inSlices(0, count, (from, to) => {
			next: for (let i = from; i < to; i++) {
				if (!words) {
					counts[above[rows[i]]]++;
					continue;
				}
				const at = rows[i] * levels;
				for (let k = 0; k < upper.length; k++) if (words[at + levels - 1 - k] !== upper[k]) continue next;
				counts[words[at + level]]++;
			}
		}, stopped);
		if (!ok) return false;
		const inBucket = new Map();
		let before = 0;
		let bucket = 0;
		for (const [rank, whole] of wanted) {
			while (before + counts[bucket] <= rank) before += counts[bucket++];
			if (!inBucket.has(bucket)) inBucket.set(bucket, []);
			inBucket.get(bucket).push([rank - before, whole]);
		}
		for (const [word, below] of inBucket) {
			const prefix = [...upper, word];
			if (!level) {
				const value = prefix.reduce((all, w) => all * 65536n + BigInt(w), 0n);
				for (const [, rank] of below) found.set(rank, value);
			} else if (!(await select(level - 1, below, prefix))) {
				return false;
			}
		}
		return true;
	}

	const exact = (value) => (column.small ? column.number + Number(value) : column.base + BigInt(value));
	const result = {
		count,
		least: exact(least),
		most: exact(most),
		mean: column.number + sum / count,
		percentiles: ranks.map((rank) => exact(found.get(rank))),
	};
	result.bins = await histogram(column, rows, Number(least), Number(most), stopped);
	return result.bins && result;
}

// {counts, edges, log}: logarithmic if values span more than three decades and none is negative.
async function histogram(column, rows, least, most, stopped) {
	const above = column.above;
	const low = column.number + least;
	const high = column.number + most;
	const log = low >= 0 && high > 1000 * Math.max(low, 1);
	const span = most - least;
	const bins = !log && (!span || (span + 1 < BINS && column.width < 8)) ? span + 1 : BINS;
	const counts = new Uint32Array(bins);
	const step = log ? Math.log(high + 1 - low) / bins : (bins === BINS ? span / bins : 1);
	const ok = await inSlices(0, rows.length, (from, to) => {
		for (let i = from; i < to; i++) {
			const value = Number(above[rows[i]]) - least;
			const bin = (log ? Math.log(value + 1) : value) / step;
			counts[bin < bins ? bin | 0 : bins - 1]++;
		}
	}, stopped);
	const edges = Array.from({ length: bins + 1 }, (_, i) => low + (log ? Math.exp(i * step) - 1 : i * step));
	return ok ? { counts, edges, log } : null;
}

// The most frequent texts: [[text, count], ...], and the number of distinct ones.
async function topTexts(field, rows, most, stopped) {
	const counts = new Uint32Array(field.texts.length);
	const ok = await inSlices(0, rows.length, (from, to) => {
		for (let i = from; i < to; i++) counts[field.column.index(rows[i])]++;
	}, stopped);
	if (!ok) return null;
	let different = 0;
	let top = [];
	await inSlices(0, counts.length, (from, to) => {
		for (let i = from; i < to; i++) {
			if (!counts[i]) continue;
			different++;
			if (top.length === most && counts[i] <= top[most - 1][1]) continue;
			top.push([i, counts[i]]);
			top.sort((a, b) => b[1] - a[1]);
			top = top.slice(0, most);
		}
	});
	return { different, top: top.map(([i, n]) => [field.texts[i], n]) };
}
