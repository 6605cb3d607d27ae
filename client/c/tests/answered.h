/* For tests: utracefs_enabled() when the daemon has answered; at most 20 s. */
#include <utracefs.h>

#include <errno.h>
#include <unistd.h>

static inline int answered(const struct utracefs_event *event)
{
	for (int n = 0; utracefs_enabled(event) && n < 20000; n++) {
		if (utracefs_event_error(event, NULL, 0) != EINPROGRESS)
			break;
		usleep(1000);
	}
	return utracefs_enabled(event);
}
