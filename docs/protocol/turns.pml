/* The protocol of turns and calls: who may write what, when workers crash, stall and are cut off.

   One turn that asks its model, runs one tool with an effect outside of the database, and answers; WORKERS that work on
   turns, TOOLBOXES that run calls, and a person who may cancel. The database is what stands in the variables: each
   `atomic` is a transaction or a conditional update of the real program, and what lies between two of them is time in
   which anybody else may come. The broker is left out: a ring says "look at the row", a sweep finds what was not rung
   for, so each process may look at any time.

   A fault is a crash, a stall, a cut, or a shutdown. Whoever crashes forgets what it held and starts anew, at every
   point, and the lease of what it held runs out. Whoever stalls or is cut off sees its lease run out as well, and goes
   on later with the fence that it had. A clean shutdown of a toolbox hands its call back before it runs. FAULTS bounds
   how many there are.

   What is shown (docs/protocol/README.md has the bounds): an effect happens at most once, a turn answers at most once,
   SUCCESS is told only of an effect that has happened, and every turn ends.

   With -DTRACE, what the real program has done stands in trace.h, and only runs that do exactly that are looked for: the
   assertion `accepted` fails if there is one. */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef TOOLBOXES
#define TOOLBOXES 2
#endif
#ifndef FAULTS
#define FAULTS 3
#endif

mtype = { NONE, QUEUED, RUNNING, WAITING, SUCCEEDED, CANCELLED, SUCCESS, UNKNOWN, FAILED };

/* The turn's row, and the call's. `expired`: the lease has run out. */
mtype turn = QUEUED, call = NONE;
byte fence = 0, call_fence = 0;
bool expired = false, call_expired = false;
/* Whether it is held by somebody who is gone, and will not renew the lease. */
bool gone = false, call_gone = false;

/* Outside of the database. */
byte effects = 0, answers = 0, faults = 0;

/* What is looked for in a trace: the next thing, with the fence of who did it. */
#define CLAIMS 1
#define ASKS 2
#define FINISHES 3
#define CALL_CLAIMS 4
#define DOUBTS 5
#define TAKES_EFFECT 6
#define ENDS 7
#define CANCELS 8
#ifdef TRACE
#include "trace.h"
byte at = 0;
#define IS(kind, number) (at < LENGTH && kinds[at] == kind && numbers[at] == (number))
#define DONE at++
/* What is shown is shown without a trace: here, an error means that there is such a run. */
#define HOLDS(what) skip
#else
#define IS(kind, number) true
#define DONE skip
#define HOLDS(what) assert(what)
#endif

#define CRASHES(holds, is_gone) atomic { faults < FAULTS -> faults++; if :: holds -> is_gone = true :: else fi; mine = 0 }
#define CALL_OPEN (call == QUEUED || call == RUNNING)
#define ENDED (turn == SUCCEEDED || turn == CANCELLED)
/* lease.claim: due, and no call of it is open. */
#define CLAIMABLE ((turn == QUEUED || turn == WAITING || (turn == RUNNING && expired)) && !CALL_OPEN)

active [WORKERS] proctype Worker()
{
    byte mine;
end:
claim:
    atomic { CLAIMABLE && IS(CLAIMS, fence + 1) ->
        turn = RUNNING; fence++; expired = false; gone = false; mine = fence; DONE
    }
    if
    :: CRASHES(fence == mine, gone); goto claim
    :: true                                          /* the model answers, sooner or later */
    fi;
    /* steps.store_calls and steps.finish: every write passes the fence, or changes nothing. */
    if
    :: atomic { turn == RUNNING && fence == mine && call == NONE && IS(ASKS, mine) ->
        turn = WAITING; call = QUEUED; DONE }
    :: atomic { turn == RUNNING && fence == mine && call != NONE && IS(FINISHES, mine) ->
        turn = SUCCEEDED; answers++; HOLDS(answers == 1); DONE }
    :: !(turn == RUNNING && fence == mine)           /* FenceLost: somebody has taken over */
    fi;
    mine = 0;
    goto claim
}

active [TOOLBOXES] proctype Toolbox()
{
    byte mine;
end:
look:
    if
    :: atomic { call == QUEUED && IS(CALL_CLAIMS, call_fence + 1) ->
        call = RUNNING; call_fence++; call_expired = false; call_gone = false; mine = call_fence; DONE }
    :: atomic { call == RUNNING && call_expired && IS(DOUBTS, call_fence + 1) ->
        call = UNKNOWN; call_fence++; DONE;          /* calls.claim: one with effects is never run again */
        goto look }
    fi;
    if
    :: CRASHES(call_fence == mine, call_gone); goto look        /* before the effect */
    :: true
    fi;
#ifndef TRACE
    /* A clean shutdown: gate.run raises Interrupted, and calls.hand_back puts it back. */
    if
    :: atomic { faults < FAULTS && call == RUNNING && call_fence == mine ->
        faults++; call = QUEUED; call_fence++; mine = 0; goto look }
    :: true
    fi;
#endif
    atomic { IS(TAKES_EFFECT, mine) -> effects++; HOLDS(effects <= 1); DONE }
    if
    :: CRASHES(call_fence == mine, call_gone); goto look        /* after it */
    :: true
    fi;
    /* calls.end, which passes the call's fence; CallLost otherwise. */
    if
    :: atomic { call == RUNNING && call_fence == mine && IS(ENDS, mine) ->
        call = SUCCESS; HOLDS(effects == 1); DONE }
    :: !(call == RUNNING && call_fence == mine)
    fi;
    mine = 0;
    goto look
}

/* Time passes: a lease that nobody renews runs out. */
active proctype Clock()
{
end:
    do
    :: atomic { faults < FAULTS && turn == RUNNING && !expired -> faults++; expired = true }
    :: atomic { faults < FAULTS && call == RUNNING && !call_expired -> faults++; call_expired = true }
    :: atomic { gone && turn == RUNNING && !expired -> expired = true }
    :: atomic { call_gone && call == RUNNING && !call_expired -> call_expired = true }
    od
}

/* turn_control.cancel_turn, of a turn that waits; its open call ends with it: one that has begun is UNKNOWN. */
active proctype Person()
{
    if
    :: atomic { (turn == QUEUED || turn == WAITING) && IS(CANCELS, fence) ->
        turn = CANCELLED;
        if
        :: call == RUNNING -> call = UNKNOWN; call_fence++
        :: call == QUEUED -> call = FAILED; call_fence++
        :: else
        fi;
        DONE }
    :: true
    fi
}

#ifdef TRACE
active proctype Accepted() { at == LENGTH -> assert(false) }
#else
ltl ends { <> ENDED }
#endif
