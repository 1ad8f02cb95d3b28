#!/usr/bin/env escript
%%! +S 2
%% The questions of messaging.py, asked of Erlang processes. Prints "wall_s cpu_s".
-mode(compile).

main([Function, Operations]) ->
    question(Function, list_to_integer(Operations)).

question("tell", N) ->
    Me = self(),
    Pid = spawn(fun() -> count(N, Me) end),
    timed(fun() -> tell(Pid, N), await(1) end);
question("tell_to_1000", N) ->
    Me = self(),
    Each = N div 1000,
    Pids = [spawn(fun() -> count(Each, Me) end) || _ <- lists:seq(1, 1000)],
    timed(fun() ->
        [[Pid ! {message, I} || Pid <- Pids] || I <- lists:seq(1, Each)],
        await(1000)
    end);
question("ask_pipelined", N) ->
    Pid = spawn(fun echo/0),
    timed(fun() -> pipelined(Pid, N) end);
question("call", N) ->
    Pid = spawn(fun echo/0),
    timed(fun() -> calls(Pid, N) end);
question("ring", N) ->
    Me = self(),
    First = spawn(fun() -> receive {next, Next} -> ring(Next, Me) end end),
    Last = lists:foldl(fun(_, Next) -> spawn(fun() -> ring(Next, Me) end) end,
                       First, lists:seq(2, 1000)),
    First ! {next, Last},
    timed(fun() -> First ! {hop, N}, await(1) end).

timed(Work) ->
    erlang:garbage_collect(),
    {Cpu0, _} = statistics(runtime),
    Wall0 = erlang:monotonic_time(nanosecond),
    Work(),
    Wall = erlang:monotonic_time(nanosecond) - Wall0,
    {Cpu, _} = statistics(runtime),
    io:format("~f ~f~n", [Wall / 1.0e9, (Cpu - Cpu0) / 1.0e3]).

await(0) -> ok;
await(N) -> receive done -> await(N - 1) end.

tell(_, 0) -> ok;
tell(Pid, N) -> Pid ! {message, N}, tell(Pid, N - 1).

count(0, Owner) -> Owner ! done;
count(N, Owner) -> receive {message, _} -> count(N - 1, Owner) end.

echo() -> receive {From, Ref, Value} -> From ! {Ref, Value}, echo() end.

calls(_, 0) -> ok;
calls(Pid, N) ->
    Ref = monitor(process, Pid),
    Pid ! {self(), Ref, N},
    receive {Ref, N} -> demonitor(Ref, [flush]) end,
    calls(Pid, N - 1).

pipelined(_, N) when N =< 0 -> ok;
pipelined(Pid, N) ->
    Batch = min(N, 100),
    Refs = [begin Ref = make_ref(), Pid ! {self(), Ref, I}, Ref end || I <- lists:seq(1, Batch)],
    [receive {Ref, _} -> ok end || Ref <- Refs],
    pipelined(Pid, N - Batch).

ring(Next, Owner) ->
    receive
        {hop, 0} -> Owner ! done;
        {hop, N} -> Next ! {hop, N - 1}, ring(Next, Owner)
    end.
