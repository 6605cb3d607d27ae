#include "states.h"

static const struct {
	enum ut_state from;
	enum ut_input input;
	enum ut_state to;
} transitions[] = {
	{UT_NEW, UT_NO_RING, UT_ANSWERS},
	{UT_NEW, UT_NEW_RING, UT_ANSWERS_AND_RING},
	{UT_NEW, UT_OLD_RING, UT_ANSWERS_TO_OFFER},
	{UT_NEW, UT_LOST, UT_WAITING},
	{UT_WAITING, UT_WANTED, UT_NEW},
	{UT_FORKED, UT_WANTED, UT_NEW},
	{UT_ANSWERS, UT_READY, UT_UP},
	{UT_ANSWERS, UT_TAKEN_AWAY, UT_NEW},
	{UT_ANSWERS, UT_LOST, UT_WAITING},
	{UT_ANSWERS_AND_RING, UT_RING_ANSWERED, UT_ANSWERS},
	{UT_ANSWERS_AND_RING, UT_TAKEN_AWAY, UT_NEW},
	{UT_ANSWERS_AND_RING, UT_LOST, UT_WAITING},
	{UT_ANSWERS_TO_OFFER, UT_SAME_INDEXES, UT_OFFERED},
	{UT_ANSWERS_TO_OFFER, UT_NEW_RING, UT_ANSWERS_AND_RING},
	{UT_ANSWERS_TO_OFFER, UT_NO_RING, UT_ANSWERS},
	{UT_ANSWERS_TO_OFFER, UT_TAKEN_AWAY, UT_NEW},
	{UT_ANSWERS_TO_OFFER, UT_LOST, UT_WAITING},
	{UT_OFFERED, UT_ADOPTED, UT_ANSWERS},
	{UT_OFFERED, UT_NEW_RING, UT_ANSWERS_AND_RING},
	{UT_OFFERED, UT_NO_RING, UT_ANSWERS},
	{UT_OFFERED, UT_TAKEN_AWAY, UT_NEW},
	{UT_OFFERED, UT_LOST, UT_WAITING},
	{UT_UP, UT_TAKEN_AWAY, UT_NEW},
	{UT_UP, UT_LOST, UT_WAITING},
};

enum ut_state ut_next_state(enum ut_state state, enum ut_input input)
{
	if (state == UT_CLOSED)
		return state;
	if (input == UT_CLOSE || input == UT_FORK)
		return input == UT_CLOSE ? UT_CLOSED : UT_FORKED;
	for (unsigned i = 0; i < sizeof(transitions) / sizeof(transitions[0]); i++)
		if (transitions[i].from == state && transitions[i].input == input)
			return transitions[i].to;
	return state;
}
