tower south
finger white
