#include "states.h"

static const struct {
	enum ut_state from;
	enum ut_input input;
	enum ut_state to;
} transitions[] = {
	{UT_NEW, UT_OFFER, UT_OFFERED},
	{UT_NEW, UT_PLAIN, UT_SOCKET},
	{UT_WAITING, UT_WANTED, UT_NEW},
	{UT_FORKED, UT_WANTED, UT_NEW},
	{UT_OFFERED, UT_READY, UT_UP},
	{UT_OFFERED, UT_PLAIN, UT_SOCKET},
	{UT_SOCKET, UT_READY, UT_SENDS},
};

enum ut_state ut_next_state(enum ut_state state, enum ut_input input)
{
	if (state == UT_CLOSED)
		return state;
	if (input == UT_CLOSE || input == UT_FORK)
		return input == UT_CLOSE ? UT_CLOSED : UT_FORKED;
	if (input == UT_LOST)
		return UT_WAITING;
	if (input == UT_AGAIN && ut_is_connected(state))
		return UT_NEW;
	for (unsigned i = 0; i < sizeof(transitions) / sizeof(transitions[0]); i++)
		if (transitions[i].from == state && transitions[i].input == input)
			return transitions[i].to;
	return state;
}
