/*
 * Four workers in C++ that take jobs from a queue: each job's begin and end is an event.
 *
 *     cmake -S . -B build -DCMAKE_PREFIX_PATH=$(utracefs c-client --prefix) && cmake --build build
 *     utracefs record -e 'user_events:job_*' -o trace.dat -- build/jobs
 *     utracefs hist job_end worker -- build/jobs
 *
 * Without a daemon it runs the same.
 */
#include <utracefs.hpp>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace {

enum class outcome : unsigned char { done, failed };

utracefs::event job_begin{"job_begin", utracefs::u32{"job"}, utracefs::u8{"worker"},
			  utracefs::string{"title"}};
utracefs::event job_end{"job_end", utracefs::u32{"job"}, utracefs::u8{"worker"}, utracefs::u8{"outcome"}};

outcome work_on(unsigned job)
{
	unsigned long sum = 0;

	for (unsigned i = 0; i < 1000 + job % 7 * 500; i++)
		sum += i * job;
	return (sum + job) % 10 == 3 ? outcome::failed : outcome::done;
}

} // namespace

int main()
{
	std::atomic<unsigned> next{0}, failed{0};
	std::vector<std::thread> workers;

	for (unsigned worker = 0; worker < 4; worker++)
		workers.emplace_back([worker, &next, &failed] {
			for (unsigned job; (job = next++) < 1000;) {
				job_begin.emit(job, worker, "job number " + std::to_string(job));
				const outcome how = work_on(job);
				job_end.emit(job, worker, how);
				failed += how == outcome::failed;
			}
		});
	for (std::thread &worker : workers)
		worker.join();
	std::printf("%u of 1000 jobs failed\n", failed.load());
}
